// SPDX-License-Identifier: Apache-2.0
#include "train/token_metrics.h"

#include <algorithm>

#include "graph/names.h"

namespace hocket::train {

namespace names = graph::names;

void TokenMetrics::add(const engine::Session& session) {
  if (session.graph().find(names::kEntropySum) == graph::kNone) return;
  any_ = true;
  for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
    entropy_ += session.collect_as<double>(names::kEntropySum, m)[0];
    misses_ += session.collect_as<double>(names::kMissesSum, m)[0];
  }
}

Values TokenMetrics::means(double targets) const {
  if (!any_) return {};
  const double accuracy = std::max(0.0, 1 - misses_ / targets);  // scaled counts are rounded
  return {{"entropy", entropy_ / targets}, {"mean_token_accuracy", accuracy}};
}

}  // namespace hocket::train

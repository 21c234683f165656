// SPDX-License-Identifier: Apache-2.0
// Metrics of fine-tuning beside the loss, of all targets of a step or an evaluation.
#pragma once

#include "engine/session.h"
#include "train/evaluate.h"

namespace hocket::train {

/// Sums over the targets of steps, for their means. A program without these outputs has none.
class TokenMetrics {
 public:
  /// Adds those of the session's last step, as its batch scaled them. All processes call.
  void add(const engine::Session& session);
  /// Returns the means; `targets`: number of the targets, 1 if the batches were scaled by it.
  Values means(double targets) const;

 private:
  bool any_ = false;
  double entropy_ = 0, misses_ = 0;
};

}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include <string_view>

#include "models/builder.h"

namespace hocket::models {

int64_t WeightSlice::numel() const {
  int64_t elements = 1;
  for (int64_t dim : dims) {
    elements *= dim;
  }
  return elements;
}

std::vector<ParamWeights> weight_map(const ModelConfig& config) {
  BuildOptions options;
  options.mode = BuildOptions::Mode::logits;
  options.tokens = 1;
  Builder builder(config, options, true);
  builder.build();
  return builder.take_weights();
}

bool is_ignored_weight(std::string_view name) {
  constexpr std::string_view kSuffix = ".rotary_emb.inv_freq";
  return name.ends_with(kSuffix);
}

}  // namespace hocket::models

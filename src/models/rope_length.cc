// SPDX-License-Identifier: Apache-2.0
#include "models/rope_length.h"

namespace hocket::models {
namespace {

int64_t length_of(const Rope& rope, int64_t longest) {
  const bool beyond = static_cast<double>(longest) > rope.original_max_position;
  if (rope.scaling == "longrope") return beyond ? 1 : 0;
  return rope.scaling == "dynamic" && beyond ? longest : 0;
}

}  // namespace

std::array<int64_t, 2> rope_length(const ModelConfig& config, int64_t longest) {
  return {length_of(config.rope, longest),
          config.window_rope ? length_of(*config.window_rope, longest) : 0};
}

}  // namespace hocket::models

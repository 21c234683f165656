// SPDX-License-Identifier: Apache-2.0
// Rotary embeddings whose frequencies follow the longest sequence of a graph.
#pragma once

#include <array>
#include <cstdint>

#include "models/config.h"

namespace hocket::models {

/// Returns what the rotary frequencies of a graph take from its longest sequence, of `longest`
/// tokens, for layers without and with a window: graphs with equal values have equal frequencies.
std::array<int64_t, 2> rope_length(const ModelConfig& config, int64_t longest);

}  // namespace hocket::models

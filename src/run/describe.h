// SPDX-License-Identifier: Apache-2.0
// One line about a model and one about a plan, as every command prints them.
#pragma once

#include <string>

#include "run/config.h"

namespace hocket::engine {

/// "qwen3_moe: 4 layers, width 256, 8 experts top-2": one line about a model.
std::string describe(const models::ModelConfig& model);
/// "pp 2 x dp 2 (ep 2), 1f1b, 4 micro-batches of 2 x 512 tokens": one line about a plan.
std::string describe(const Run& run);

}  // namespace hocket::engine

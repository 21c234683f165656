// SPDX-License-Identifier: Apache-2.0
// Adapters of stacked experts written with tensors of each expert.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/adapter.h"
#include "models/config.h"

namespace hocket::checkpoint {

/// Writes an adapter's folder with an A and a B of each projection of an expert, under the names of
/// transformers 4, in place of those of stacked experts; the products are the same. `base`: the
/// folder's base_model_name_or_path. Returns the number of tensors. Throws Error for an adapter
/// without stacked experts, with a rank or alpha of theirs alone, or if `out` cannot be written.
int64_t save_expert_modules(const AdapterWeights& adapter, const models::ModelConfig& model,
                            const std::string& base, const std::string& out);

}  // namespace hocket::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Attributes of lora_scale, for its rule and its kernel.
#pragma once

#include <string>
#include <vector>

#include "graph/tensor_type.h"

namespace hocket::ops {

/// Returns the numbers of an attribute of lora_scale ("factors", "kept"), one per part. Throws
/// Error for something that is no number.
std::vector<double> part_numbers(const graph::Attrs& attrs, const std::string& key);

}  // namespace hocket::ops

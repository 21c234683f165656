// SPDX-License-Identifier: Apache-2.0
// Parameters out of the tensors that hold parts of them.
#pragma once

#include <cstdint>

#include "checkpoint/safetensors.h"
#include "graph/tensor_type.h"
#include "models/weights.h"

namespace hocket::checkpoint {

/// Reads elements [first, first + count) of a parameter, converted to `dtype`, from the slices that
/// make it up, in order of offset. Elements in no slice are left as they are. Throws Error for a
/// file that cannot be read.
void read_slices(const TensorFiles& file, const models::WeightForm& form, int64_t first,
                 int64_t count, graph::DType dtype, void* dst);

}  // namespace hocket::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Tests for non-finite numbers, for every element type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/dtype.h"

namespace hocket::graph {

/// The first of `count` elements that is infinite or no number, or -1. Integers always are finite;
/// a scale (f8_e8m0) can be no number.
int64_t first_not_finite(DType dtype, const void* data, int64_t count);

inline bool all_finite(DType dtype, const void* data, int64_t count) {
  return first_not_finite(dtype, data, count) < 0;
}

}  // namespace hocket::graph

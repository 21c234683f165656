// SPDX-License-Identifier: Apache-2.0
// Elements of floating-point types as the numbers that they are.
#pragma once

#include <span>

#include "graph/dtype.h"

namespace hocket::graph {

/// Fills `to` from plain elements of f32, f64, bf16 or f16. f64 is rounded to float.
void read_numbers(DType dtype, const void* from, std::span<float> to);
void read_numbers(DType dtype, const void* from, std::span<double> to);

/// Rounds numbers into plain elements of f32, f64, bf16 or f16; f32 are copied.
void write_numbers(std::span<const float> from, DType dtype, void* to);

}  // namespace hocket::graph

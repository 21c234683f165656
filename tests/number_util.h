// SPDX-License-Identifier: Apache-2.0
// Elements of every plain type as doubles, by searching all numbers that a small type has: slow,
// and nothing like how kernels do it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/dtype.h"

namespace hocket::test {

/// The number that a code of f16, bf16 or an 8-bit floating-point type is.
double value_of(graph::DType dtype, uint32_t code);
/// The code of the nearest number (ties to the even code). Beyond the largest: infinity of f16 and
/// bf16, the largest itself of the others.
uint32_t code_of(graph::DType dtype, double value);
/// Codes of the finite numbers from 0 up: 0 .. largest_code, in the order of the numbers.
uint32_t largest_code(graph::DType dtype);

/// Elements of any plain type of whole bytes.
void store_element(graph::DType dtype, double value, std::byte* to);
double load_element(graph::DType dtype, const std::byte* from);

}  // namespace hocket::test

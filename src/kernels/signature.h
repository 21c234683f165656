// SPDX-License-Identifier: Apache-2.0
// Operand types of a kernel, from its row of a table.
#pragma once

#include <string_view>

#include "kernels/abi.h"

namespace hocket::kernels {

/// Returns whether a kernel with this signature, compiled for T, accepts operands of `types`. A
/// signature has a word per operand, inputs before "->" and outputs after it: "T,T,i32->T".
///   T      plain elements of the type that the kernel is compiled for
///   S      the type of sums of T (ops::sum_dtype): f32 for bf16, otherwise T
///   G      T or S: the type of a parameter's gradient (ops::grad_dtype)
///   f8     8-bit floating-point elements, if T is shorter than the type of its sums
///   f64    plain elements of this type, for any T
///   plain  plain elements of any type of whole bytes
///   any    any type
/// A word with '*' may repeat any number of times, one with '?' is optional. Signatures for other
/// numbers of operands are separated by '|'.
bool takes(std::string_view signature, graph::DType compiled_for, const OperandTypes& types);

}  // namespace hocket::kernels

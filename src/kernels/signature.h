// SPDX-License-Identifier: Apache-2.0
// Which operand types a kernel takes, as its row of a table says it.
#pragma once

#include <string_view>

#include "kernels/abi.h"

namespace hocket::kernels {

/// True if a kernel with this signature, compiled for T, takes operands of these types. Words stand
/// for operands, inputs before "->" and outputs behind it: "T,T,i32->T".
///   T      plain elements of the type that the kernel is compiled for
///   S      those of the type of sums of such (ops::sum_dtype): f32 for bf16, otherwise T itself
///   G      those of either: of a parameter's gradient (ops::grad_dtype)
///   f8     8-bit floating-point elements, where T is shorter than the type of its sums
///   f64    plain elements of this type, whatever T is
///   plain  plain elements of any type of whole bytes
///   any    whatever lies there
/// A word with '*' may come any number of times, one with '?' once or not at all. Signatures of
/// operands in other numbers are separated by '|'.
bool takes(std::string_view signature, graph::DType compiled_for, const OperandTypes& types);

}  // namespace hocket::kernels

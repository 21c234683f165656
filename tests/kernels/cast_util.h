// SPDX-License-Identifier: Apache-2.0
// The kernel of `cast` over arrays of numbers.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/graph.h"

namespace hocket::test {

/// The types that `cast` knows.
inline constexpr graph::DType kElementTypes[] = {
    graph::DType::f32,     graph::DType::f64,     graph::DType::bf16, graph::DType::f16,
    graph::DType::f8_e4m3, graph::DType::f8_e5m2, graph::DType::i32,  graph::DType::i64,
    graph::DType::i8,      graph::DType::u8};

/// On every instruction set that this processor has; the results must agree to the bit.
std::vector<std::byte> cast(graph::DType from, graph::DType to, const std::vector<std::byte>& data);
std::vector<double> cast(graph::DType from, graph::DType to, const std::vector<double>& values);

/// Numbers as elements of a type, and elements as numbers.
std::vector<std::byte> pack(graph::DType dtype, const std::vector<double>& values);
std::vector<double> unpack(graph::DType dtype, const std::vector<std::byte>& data);

/// Equal bits, or both no number.
bool same(double a, double b);

}  // namespace hocket::test

// SPDX-License-Identifier: Apache-2.0
// Elements of one type as elements of another.
#pragma once

#include <cstdint>

#include "graph/dtype.h"

namespace hocket::kernels::HOCKET_CPU {

/// Converts `n` elements, of all plain types of whole bytes, as the op `cast` does.
void convert(graph::DType from, const void* source, graph::DType to, void* target, int64_t n);

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
// Declarations of all kernels (one function template per op and compiled type, or one function if
// independent of the type) and shared helpers: operand access, parallel loops. Operands, formulas
// and accumulation are those of the op's file in src/ops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "kernels/abi.h"
#include "kernels/cpu/scratch.h"
#include "kernels/team.h"
#include "ops/workspace.h"

namespace hocket::kernels::HOCKET_CPU {
#define FLOATS(op, signature, letters) \
  template <typename T>                \
  void op(const KernelArgs& args);
#define EACH FLOATS
#define MOVES(op, signature, letters) void op(const KernelArgs& args);
#define ONE(op, signature, letters) void op(const KernelArgs& args);
#include "kernels/cpu/kernels.inc"
#undef FLOATS
#undef MOVES
#undef ONE

/// Instantiates a kernel of FLOATS at the end of its file.
#define HOCKET_KERNEL(op)                     \
  template void op<float>(const KernelArgs&); \
  template void op<double>(const KernelArgs&);

template <typename T>
const T* in(const KernelArgs& args, size_t i) {
  return args.in[i].as<const T>();
}
template <typename T>
T* out(const KernelArgs& args, size_t i) {
  return args.out[i].as<T>();
}
/// Returns the offset of a letter's piece.
inline int64_t piece_offset(const KernelArgs& args, char letter) {
  for (const LetterOffset& begin : args.piece_offsets) {
    if (begin.letter == letter) return begin.index;
  }
  return 0;
}
inline bool accumulates(const KernelArgs& args, int i) { return args.accumulate >> i & 1; }

/// Bytes of an element.
inline int64_t element_bytes(const TensorRef& t) { return graph::size_of(t.type->dtype); }

/// Elements stored by a dense tensor.
inline int64_t count(const TensorRef& t) { return t.type->numel(); }
/// Size of the last dim, and the number of rows of that size (dense tensors).
inline int64_t last_dim(const TensorRef& t) { return t.type->dims.back(); }
inline int64_t row_count(const TensorRef& t) {
  return last_dim(t) == 0 ? 0 : count(t) / last_dim(t);
}
/// Rows that a routed tensor holds: the sum of its experts' counts.
inline int64_t routed_rows(const TensorRef& counts) {
  int64_t rows = 0;
  for (int64_t e = 0; e < count(counts); ++e) {
    rows += counts.as<const int64_t>()[e];
  }
  return rows;
}

/// Calls fn(begin, end) on contiguous parts of [0, n), one per thread of the caller's team, no
/// part smaller than about `grain`.
template <typename F>
void parallel_for(int64_t n, int64_t grain, F&& fn) {
  int64_t parts = std::min<int64_t>(team_size(), ceil_div(n, std::max<int64_t>(grain, 1)));
  if (parts <= 1) {
    if (n > 0) {
      fn(int64_t{0}, n);
    }
    return;
  }
  auto part = [&](int64_t p, int64_t) { fn(n * p / parts, n * (p + 1) / parts); };
  parallel(parts, parts, part);
}

/// Elements below which a memory-bound loop stays on one thread.
inline constexpr int64_t kGrain = 16384;

/// Grain, in rows, of a loop over rows of `row` elements.
inline int64_t row_grain(int64_t row) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(row, 1));
}

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
// embedding and its weight gradient, of all rows or a run of them. The gradient is split by columns
// over threads: no two write the same element, and rows are added in token order.
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

void check_ids(const char* op, const KernelArgs& args, const int32_t* ids, int64_t n) {
  const int64_t vocab = args.attrs->i("vocab");
  const bool padded = args.attrs->i_or("padded", 0) != 0;
  for (int64_t t = 0; t < n; ++t) {
    if ((ids[t] < 0 && !padded) || ids[t] >= vocab) {
      fail_run(op,
               "token id {} at position {}; expected 0 <= id < {} (the vocabulary); try the "
               "tokenizer that the model was made with",
               ids[t], t, vocab);
    }
  }
}

}  // namespace

void embedding(const KernelArgs& args) {
  const int32_t* ids = in<int32_t>(args, 0);
  const auto* w = in<std::byte>(args, 1);
  auto* x = out<std::byte>(args, 0);
  const int64_t n = count(args.in[0]), d = args.in[1].dim(1), bytes = d * element_bytes(args.in[1]);
  const int64_t first = piece_offset(args, 'v'), rows = args.in[1].dim(0);
  check_ids("embedding", args, ids, n);
  parallel_for(n, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = ids[t] - first;
      if (row >= 0 && row < rows) {
        std::memcpy(x + t * bytes, w + row * bytes, static_cast<size_t>(bytes));
      } else {
        std::memset(x + t * bytes, 0, static_cast<size_t>(bytes));
      }
    }
  });
}

template <typename T>
void embedding_dw(const KernelArgs& args) {
  const int32_t* ids = in<int32_t>(args, 0);
  const T* dy = in<T>(args, 1);
  T* dw = out<T>(args, 0);
  const int64_t n = count(args.in[0]), rows = args.out[0].dim(0), d = args.out[0].dim(1);
  const int64_t first = piece_offset(args, 'v');
  check_ids("embedding_dw", args, ids, n);
  if (!accumulates(args, 0)) {
    parallel_for(rows * d, kGrain, [&](int64_t begin, int64_t end) {
      std::memset(dw + begin, 0, static_cast<size_t>(end - begin) * sizeof(T));
    });
  }
  constexpr int64_t kColumns = 64 / sizeof(T);  // a cache line
  const auto add_rows = [&](auto is_here) {
    parallel_for(ceil_div(d, kColumns), ceil_div(kGrain, std::max<int64_t>(n, 1) * kColumns),
                 [&](int64_t begin, int64_t end) {
                   const int64_t c0 = begin * kColumns, c1 = std::min(d, end * kColumns);
                   for (int64_t t = 0; t < n; ++t) {
                     const int64_t row = ids[t] - first;
                     if (!is_here(row)) continue;
                     T* __restrict to = dw + row * d;
                     const T* __restrict from = dy + t * d;
#pragma omp simd
                     for (int64_t c = c0; c < c1; ++c) to[c] += from[c];
                   }
                 });
  };
  if (rows == args.attrs->i("vocab") && args.attrs->i_or("padded", 0) == 0) {
    add_rows([](int64_t) { return true; });
  } else {
    add_rows([rows](int64_t row) { return row >= 0 && row < rows; });
  }
}

HOCKET_KERNEL(embedding_dw)

}  // namespace hocket::kernels::HOCKET_CPU

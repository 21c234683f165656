// SPDX-License-Identifier: Apache-2.0
// route_plan, dispatch, combine and their gradients: every pass goes over tokens, so that a
// token's k rows are scattered or gathered by one thread in the order of k. A token with experts -1
// has rows -1: none.
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

void route_plan(const KernelArgs& args) {
  const int32_t* ids = in<int32_t>(args, 0);
  int64_t* counts = out<int64_t>(args, 0);
  int32_t* row_of = out<int32_t>(args, 1);
  const int64_t n = count(args.in[0]), e = args.attrs->i("num_experts");
  std::fill(counts, counts + e, int64_t{0});
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < -1 || ids[i] >= e) {
      fail_run("route_plan", "expert {} at {}; expected 0 <= expert < {}, or -1 for none", ids[i],
               i, e);
    }
    if (ids[i] >= 0) {
      ++counts[ids[i]];
    }
  }
  int64_t* next = Scratch(args).take<int64_t>(e);
  int64_t at = 0;
  for (int64_t i = 0; i < e; ++i) {
    next[i] = at;
    at += counts[i];
  }
  for (int64_t i = 0; i < n; ++i) {
    row_of[i] = ids[i] < 0 ? -1 : static_cast<int32_t>(next[ids[i]]++);
  }
}

void dispatch(const KernelArgs& args) {
  const auto* x = in<std::byte>(args, 0);
  const int32_t* row_of = in<int32_t>(args, 1);
  auto* xs = out<std::byte>(args, 0);
  const int64_t tokens = args.in[0].dim(0), d = args.in[0].dim(1), k = args.in[1].dim(1);
  const int64_t bytes = d * element_bytes(args.in[0]);
  parallel_for(tokens, row_grain(d * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * k; i < end * k; ++i) {
      if (row_of[i] < 0) continue;
      std::memcpy(xs + row_of[i] * bytes, x + i / k * bytes, static_cast<size_t>(bytes));
    }
  });
}

template <typename T>
void dispatch_bwd(const KernelArgs& args) {
  const T* dxs = in<T>(args, 0);
  const int32_t* row_of = in<int32_t>(args, 1);
  T* dx = out<T>(args, 0);
  const int64_t tokens = args.out[0].dim(0), d = args.out[0].dim(1), k = args.in[1].dim(1);
  const bool add = accumulates(args, 0);
  parallel_for(tokens, row_grain(d * k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* __restrict to = dx + t * d;
      if (!add) {
        std::fill(to, to + d, T(0));
      }
      for (int64_t j = 0; j < k && row_of[t * k + j] >= 0; ++j) {
        const T* __restrict from = dxs + row_of[t * k + j] * d;
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) to[i] += from[i];
      }
    }
  });
}

void regroup(const KernelArgs& args) {
  // Rows of every chunk are in the order (expert, source, token): per expert and source, the
  // concatenated rows of the arriving chunks equal those of the new chunks.
  const size_t from = static_cast<size_t>(args.attrs->i("from"));
  const size_t to = args.out.size();
  const int64_t experts = args.in[0].dim(0), members = args.in[from].dim(0);
  const int64_t all_experts = args.in[from].dim(1), first = piece_offset(args, 'e');
  const int64_t bytes = args.in[0].type->row_size() * element_bytes(args.in[0]);
  if (first + experts > all_experts) {
    fail_run("regroup", "experts {} to {} of {} in the sizes", first, first + experts, all_experts);
  }
  Scratch scratch(args);
  int64_t* read = scratch.take<int64_t>(static_cast<int64_t>(from));
  int64_t* written = scratch.take<int64_t>(static_cast<int64_t>(to));
  std::fill(read, read + from, 0);
  std::fill(written, written + to, 0);
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t source = 0; source < members; ++source) {
      const int64_t at = source * all_experts + first + e;
      size_t chunk = 0;
      int64_t left = in<int64_t>(args, from)[at];
      for (size_t o = 0; o < to; ++o) {
        int64_t want = in<int64_t>(args, 2 * from + o)[at];
        if (want < 0 || left < 0) fail_run("regroup", "{} and {} rows in the sizes", left, want);
        while (want > 0) {
          while (left == 0 && chunk + 1 < from) {
            left = in<int64_t>(args, from + ++chunk)[at];
          }
          const int64_t rows = std::min(want, left);
          if (rows <= 0 || read[chunk] + rows > args.in[chunk].type->max_rows() ||
              written[o] + rows > args.out[o].type->max_rows()) {
            fail_run("regroup", "{} more rows of expert {} for chunk {}, which has {}; {} are left",
                     want, first + e, o, written[o], left);
          }
          std::memcpy(out<std::byte>(args, o) + written[o] * bytes,
                      in<std::byte>(args, chunk) + read[chunk] * bytes,
                      static_cast<size_t>(rows * bytes));
          read[chunk] += rows;
          written[o] += rows;
          left -= rows;
          want -= rows;
        }
      }
      for (; chunk + 1 < from; left += in<int64_t>(args, from + ++chunk)[at]) {
      }
      if (left > 0) {
        fail_run("regroup", "{} rows of expert {} are in no chunk that is wanted", left, first + e);
      }
    }
  }
}

template <typename T>
void combine(const KernelArgs& args) {
  const T *ys = in<T>(args, 0), *w = in<T>(args, 1);
  const int32_t* row_of = in<int32_t>(args, 2);
  T* y = out<T>(args, 0);
  const int64_t tokens = args.out[0].dim(0), d = args.out[0].dim(1), k = args.in[2].dim(1);
  parallel_for(tokens, row_grain(d * k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* __restrict to = y + t * d;
      if (row_of[t * k] < 0) {
        std::fill_n(to, d, T(0));
        continue;
      }
      for (int64_t j = 0; j < k; ++j) {
        const T* __restrict from = ys + row_of[t * k + j] * d;
        const T f = w[t * k + j];
        if (j == 0) {
#pragma omp simd
          for (int64_t i = 0; i < d; ++i) to[i] = f * from[i];
        } else {
#pragma omp simd
          for (int64_t i = 0; i < d; ++i) to[i] += f * from[i];
        }
      }
    }
  });
}

template <typename T>
void combine_bwd(const KernelArgs& args) {
  const T *dy = in<T>(args, 0), *ys = in<T>(args, 1), *w = in<T>(args, 2);
  const int32_t* row_of = in<int32_t>(args, 3);
  T *dys = out<T>(args, 0), *dw = out<T>(args, 1);
  const int64_t tokens = args.in[0].dim(0), d = args.in[0].dim(1), k = args.in[3].dim(1);
  parallel_for(tokens, row_grain(d * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * k; i < end * k; ++i) {
      if (row_of[i] < 0) {
        dw[i] = 0;
        continue;
      }
      const T* __restrict from = dy + i / k * d;
      const T* __restrict saved = ys + row_of[i] * d;
      T* __restrict to = dys + row_of[i] * d;
      const T f = w[i];
      T dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t c = 0; c < d; ++c) {
        to[c] = f * from[c];
        dot += from[c] * saved[c];
      }
      dw[i] = dot;
    }
  });
}

template <typename T>
void combine_dys(const KernelArgs& args) {
  const T *dy = in<T>(args, 0), *w = in<T>(args, 1);
  const int32_t* row_of = in<int32_t>(args, 2);
  T* dys = out<T>(args, 0);
  const int64_t tokens = args.in[0].dim(0), d = args.in[0].dim(1), k = args.in[2].dim(1);
  parallel_for(tokens, row_grain(d * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * k; i < end * k; ++i) {
      if (row_of[i] < 0) continue;
      const T* __restrict from = dy + i / k * d;
      T* __restrict to = dys + row_of[i] * d;
      const T f = w[i];
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) {
        to[c] = f * from[c];
      }
    }
  });
}

template <typename T>
void combine_dw(const KernelArgs& args) {
  const T *dy = in<T>(args, 0), *ys = in<T>(args, 1);
  const int32_t* row_of = in<int32_t>(args, 2);
  T* dw = out<T>(args, 0);
  const int64_t tokens = args.in[0].dim(0), d = args.in[0].dim(1), k = args.in[2].dim(1);
  parallel_for(tokens, row_grain(d * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * k; i < end * k; ++i) {
      if (row_of[i] < 0) {
        dw[i] = 0;
        continue;
      }
      const T* __restrict from = dy + i / k * d;
      const T* __restrict saved = ys + row_of[i] * d;
      T dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t c = 0; c < d; ++c) {
        dot += from[c] * saved[c];
      }
      dw[i] = dot;
    }
  });
}

HOCKET_KERNEL(dispatch_bwd)
HOCKET_KERNEL(combine)
HOCKET_KERNEL(combine_bwd)
HOCKET_KERNEL(combine_dys)
HOCKET_KERNEL(combine_dw)

}  // namespace hocket::kernels::HOCKET_CPU
// SPDX-License-Identifier: Apache-2.0
// bias_add: y = x + b in every row; the gradient of b is the sum of the rows, in blocks of rows, so
// that it does not depend on threads. Dense rows are those of one expert.
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// The rows of experts, each with a bias of `width` elements.
struct BiasedRows {
  int64_t experts = 1, width = 0;
  const int64_t* counts = nullptr;  ///< null: one expert
  int64_t dense_rows = 0;
  /// `x`: the rows, `bias`: one bias, or its gradient, per expert.
  BiasedRows(const KernelArgs& args, const TensorRef& x, const TensorRef& bias, size_t at) {
    if (x.type->routed()) {
      experts = x.dim(0);
      counts = in<int64_t>(args, at);
    } else {
      dense_rows = x.dim(0);
    }
    width = experts == 0 ? 0 : count(bias) / experts;
  }
  int64_t rows_of(int64_t expert) const { return counts ? counts[expert] : dense_rows; }
  int64_t rows() const {
    int64_t all = 0;
    for (int64_t e = 0; e < experts; ++e) {
      all += rows_of(e);
    }
    return all;
  }
};

}  // namespace

template <typename T>
void bias_add(const KernelArgs& args) {
  const T *x = in<T>(args, 0), *bias = in<T>(args, 1);
  T* y = out<T>(args, 0);
  const BiasedRows all(args, args.in[0], args.in[1], 2);
  const int64_t width = all.width;
  parallel_for(all.rows(), row_grain(width), [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (int64_t e = 0; e < all.experts; ++e) {
      const int64_t last = first + all.rows_of(e);
      const T* b = bias + e * width;
      for (int64_t r = std::max(begin, first); r < std::min(end, last); ++r) {
        const T* from = x + r * width;
        T* to = y + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) to[i] = from[i] + b[i];
      }
      first = last;
    }
  });
}

template <typename T>
void bias_add_db(const KernelArgs& args) {
  // A task is a strip of columns of one expert. Rows are added up in blocks, and these in turn.
  constexpr int64_t kStrip = 256, kBlock = 64;
  const T* dy = in<T>(args, 0);
  T* db = out<T>(args, 0);
  const BiasedRows all(args, args.in[0], args.out[0], 1);
  const bool add = accumulates(args, 0);
  const int64_t strips = ceil_div(all.width, kStrip), tasks = all.experts * strips;
  auto run = [&](int64_t task, int64_t) {
    const int64_t expert = task / strips, column = task % strips * kStrip;
    const int64_t n = std::min(kStrip, all.width - column), rows = all.rows_of(expert);
    int64_t first = 0;
    for (int64_t e = 0; e < expert; ++e) {
      first += all.rows_of(e);
    }
    T sum[kStrip] = {};
    for (int64_t begin = 0; begin < rows; begin += kBlock) {
      T block[kStrip] = {};
      for (int64_t r = begin; r < std::min(rows, begin + kBlock); ++r) {
        const T* from = dy + (first + r) * all.width + column;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) block[i] += from[i];
      }
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += block[i];
    }
    T* to = db + expert * all.width + column;
    for (int64_t i = 0; i < n; ++i) {
      to[i] = add ? to[i] + sum[i] : sum[i];
    }
  };
  const int64_t threads = all.rows() * all.width < kGrain ? 1 : team_size();
  parallel(tasks, std::max<int64_t>(1, std::min<int64_t>(threads, tasks)), run);
}

HOCKET_KERNEL(bias_add)
HOCKET_KERNEL(bias_add_db)

}  // namespace hocket::kernels::HOCKET_CPU

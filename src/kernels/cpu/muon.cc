// SPDX-License-Identifier: Apache-2.0
// muon_momentum, orthogonalize, orthogonalize_each, muon, muon_master.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void muon_momentum(const KernelArgs& args) {
  const double clip = *in<double>(args, 2);
  T* const m = out<T>(args, 0);
  T* const u = out<T>(args, 1);
  const T* const g = in<T>(args, 0);
  const int64_t n = count(args.out[0]);
  if (std::isnan(clip)) {
    std::fill(u, u + n, T{0});
    return;
  }
  const double momentum = args.attrs->f("momentum");
  const T coef = static_cast<T>(clip), kept = static_cast<T>(momentum);
  const T added = static_cast<T>(1 - momentum);
  const bool nesterov = args.attrs->i("nesterov") != 0;
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const T d = added * (g[i] * coef);
      const T mean = kept * m[i] + d;
      m[i] = mean;
      u[i] = nesterov ? kept * mean + d : mean;
    }
  });
}

namespace {

/// The polynomial a x + b x^3 + c x^5 of a Newton-Schulz step.
template <typename T>
struct Series {
  T a, b, c;
};

/// Orthogonalises a matrix x[rows, columns] into y. Works on the shorter side: of a tall matrix
/// with X^T X from the right. One product per step applies the polynomial, a I added to the rest.
template <typename T>
void orthogonalize_one(const KernelArgs& args, const T* x, T* y, int64_t rows, int64_t columns) {
  const Series<T> series{static_cast<T>(args.attrs->f("a")), static_cast<T>(args.attrs->f("b")),
                         static_cast<T>(args.attrs->f("c"))};
  const bool tall = rows > columns;
  const int64_t r = std::min(rows, columns), c = std::max(rows, columns), n = rows * columns;
  const int64_t steps = args.attrs->i("steps");
  Scratch scratch(args);
  T* from = scratch.take<T>(n);
  T* const gram = scratch.take<T>(r * r);
  T* const factor = scratch.take<T>(r * r);
  T* to = y;
  if (steps % 2 == 0) {
    std::swap(from, to);
  }
  const double norm = std::max(std::sqrt(vsumsq(x, n)), args.attrs->f("eps"));
  const T scale = static_cast<T>(1 / norm);
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      from[i] = x[i] * scale;
    }
  });
  for (int64_t step = 0; step < steps; ++step) {
    gemm<T>({.trans_a = tall,
             .trans_b = !tall,
             .m = r,
             .n = r,
             .k = c,
             .a = from,
             .lda = columns,
             .b = from,
             .ldb = columns,
             .c = gram,
             .ldc = r},
            scratch);
    gemm<T>(
        {.m = r, .n = r, .k = r, .a = gram, .lda = r, .b = gram, .ldb = r, .c = factor, .ldc = r},
        scratch);
    parallel_for(r, row_grain(r), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < r; ++j) {
          factor[i * r + j] = series.b * gram[i * r + j] + series.c * factor[i * r + j];
        }
        factor[i * r + i] += series.a;
      }
    });
    gemm<T>({.m = rows,
             .n = columns,
             .k = r,
             .a = tall ? from : factor,
             .lda = r,
             .b = tall ? factor : from,
             .ldb = columns,
             .c = to,
             .ldc = columns},
            scratch);
    std::swap(from, to);
  }
}

}  // namespace

template <typename T>
void orthogonalize(const KernelArgs& args) {
  int64_t rows = 1;
  for (int64_t dim = 0; dim < args.attrs->i_or("rows", 1); ++dim) {
    rows *= args.in[0].dim(static_cast<size_t>(dim));
  }
  const int64_t n = count(args.in[0]);
  if (n > 0) {
    orthogonalize_one(args, in<T>(args, 0), out<T>(args, 0), rows, n / rows);
  }
}

template <typename T>
void orthogonalize_each(const KernelArgs& args) {
  const auto& dims = args.in[0].type->dims;
  const int64_t rows = dims[dims.size() - 2], columns = dims.back(), n = rows * columns;
  for (int64_t at = 0; at < count(args.in[0]); at += n) {
    orthogonalize_one(args, in<T>(args, 0) + at, out<T>(args, 0) + at, rows, columns);
  }
}

namespace {

/// Updates p in place by the direction u, with coef and hyper from input `settings` on; leaves it,
/// bit for bit, where the step is skipped.
template <typename T>
void step_along(const KernelArgs& args, size_t settings, T* p, const T* u) {
  if (std::isnan(*in<double>(args, settings))) return;
  const double lr = learning_rate(args, settings + 1);
  const T decay = static_cast<T>(1 - lr * args.attrs->f("weight_decay"));
  const T step = static_cast<T>(lr * args.attrs->f("ratio"));
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      p[i] = p[i] * decay - step * u[i];
    }
  });
}

}  // namespace

template <typename T>
void muon(const KernelArgs& args) {
  step_along(args, 2, out<T>(args, 0), in<T>(args, 1));
}

template <typename T>
void muon_master(const KernelArgs& args) {
  T* const p = out<T>(args, 0);
  const T* const master = out<T>(args, 1);
  step_along(args, 3, out<T>(args, 1), in<T>(args, 1));
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
    std::copy(master + begin, master + end, p + begin);
  });
}

HOCKET_KERNEL(muon_momentum)
HOCKET_KERNEL(orthogonalize)
HOCKET_KERNEL(orthogonalize_each)
HOCKET_KERNEL(muon)
HOCKET_KERNEL(muon_master)

}  // namespace hocket::kernels::HOCKET_CPU

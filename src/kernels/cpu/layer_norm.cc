// SPDX-License-Identifier: Apache-2.0
// layer_norm: y = xh w + b with xh = (x - mean) * rstd over the last dim, the variance from the
// differences to the mean. Backward, with g = dy w: dx = rstd (g - mean(g) - xh mean(g xh)),
// dw = sum dy xh and db = sum dy. Both are summed over fixed blocks of rows first, so they do not
// depend on the thread count.
#include <cmath>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void layer_norm(const KernelArgs& args) {
  const T *x = in<T>(args, 0), *w = in<T>(args, 1), *b = in<T>(args, 2);
  T *y = out<T>(args, 0), *mean = out<T>(args, 1), *rstd = out<T>(args, 2);
  const int64_t d = last_dim(args.in[0]), rows = row_count(args.in[0]);
  const T eps = static_cast<T>(args.attrs->f("eps")), n = static_cast<T>(d);
  parallel_for(rows, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* __restrict row = x + r * d;
      T* __restrict to = y + r * d;
      T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < d; ++i) sum += row[i];
      const T m = sum / n;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < d; ++i) squares += (row[i] - m) * (row[i] - m);
      const T s = T(1) / std::sqrt(squares / n + eps);
      mean[r] = m;
      rstd[r] = s;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) to[i] = (row[i] - m) * s * w[i] + b[i];
    }
  });
}

template <typename T>
void layer_norm_bwd(const KernelArgs& args) {
  const T *dy = in<T>(args, 0), *x = in<T>(args, 1), *w = in<T>(args, 2), *mean = in<T>(args, 3),
          *rstd = in<T>(args, 4);
  T *dx = out<T>(args, 0), *dw = out<T>(args, 1), *db = out<T>(args, 2);
  const int64_t d = last_dim(args.in[1]), rows = row_count(args.in[1]);
  const T n = static_cast<T>(d);
  const bool add_dx = accumulates(args, 0);
  const int64_t block = ops::norm_block_rows(rows), blocks = ceil_div(rows, block);
  T* partial = Scratch(args).take<T>(2 * blocks * d);
  parallel_for(blocks, ceil_div(row_grain(d), block), [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      T* __restrict acc_w = partial + 2 * part * d;
      T* __restrict acc_b = acc_w + d;
      std::fill(acc_w, acc_w + 2 * d, T(0));
      for (int64_t r = part * block; r < std::min(rows, (part + 1) * block); ++r) {
        const T* __restrict dyr = dy + r * d;
        const T* __restrict xr = x + r * d;
        T* __restrict dxr = dx + r * d;
        const T m = mean[r], s = rstd[r];
        T sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
        for (int64_t i = 0; i < d; ++i) {
          const T g = dyr[i] * w[i];
          sum += g;
          dot += g * (xr[i] - m);
        }
        const T a = sum / n, c = dot * s * s / n;
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) {
          acc_w[i] += dyr[i] * (xr[i] - m) * s;
          acc_b[i] += dyr[i];
        }
        // Two loops instead of a branch in one: it must vectorise.
        if (add_dx) {
#pragma omp simd
          for (int64_t i = 0; i < d; ++i) {
            dxr[i] += s * (dyr[i] * w[i] - a - (xr[i] - m) * c);
          }
        } else {
#pragma omp simd
          for (int64_t i = 0; i < d; ++i) {
            dxr[i] = s * (dyr[i] * w[i] - a - (xr[i] - m) * c);
          }
        }
      }
    }
  });
  const auto add_up = [&](T* to, bool add, int64_t at) {
    if (!add) {
      std::fill(to, to + d, T(0));
    }
    for (int64_t part = 0; part < blocks; ++part) {
      const T* __restrict acc = partial + 2 * part * d + at;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) {
        to[i] += acc[i];
      }
    }
  };
  add_up(dw, accumulates(args, 1), 0);
  add_up(db, accumulates(args, 2), d);
}

HOCKET_KERNEL(layer_norm)
HOCKET_KERNEL(layer_norm_bwd)

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
// rms_norm: y = x * rstd * w with rstd = 1/sqrt(mean(x^2) + eps) over a row, w = offset + g; and
// its steps on a part of every row (row_norm.cc in src/ops). Backward, with xh = x * rstd and c =
// mean(dy * w * xh): dx = rstd (dy w - xh c), dg = sum dy xh. dg is summed over fixed blocks of
// rows first, so it does not depend on the thread count.
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// The number added to every weight.
template <typename T>
T weight_offset(const KernelArgs& args) {
  return args.attrs->has("offset") ? static_cast<T>(args.attrs->f("offset")) : T(0);
}

/// Returns sum dy w x of a row.
template <typename T>
T weighted_dot(const T* __restrict dy, const T* __restrict x, const T* __restrict g, T offset,
               int64_t d) {
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < d; ++i) dot += dy[i] * (offset + g[i]) * x[i];
  return dot;
}

/// The gradients of a norm of rows of `row` elements; all or some elements are here. `dot(dy, x,
/// number of the row)` is sum dy w x over the whole row.
template <typename T, typename Dot>
void norm_bwd(const KernelArgs& args, int64_t row, const Dot& dot) {
  // y = x w s with s = 1 / rms(x), one s a row. Per row: dx = w dy s - x dot s^3 / row, and dg +=
  // dy x s. Rows are cut into blocks by their number alone. Each block sums dg into a row of
  // `partial`, and these are added in order at the end. So bits do not depend on the number of
  // threads.
  const T *dy = in<T>(args, 0), *x = in<T>(args, 1), *g = in<T>(args, 2), *rstd = in<T>(args, 3);
  T *dx = out<T>(args, 0), *dg = out<T>(args, 1);
  const int64_t d = count(args.in[2]), rows = count(args.in[3]);
  const T offset = weight_offset<T>(args);
  const bool add_dx = accumulates(args, 0), add_dg = accumulates(args, 1);
  const int64_t block = ops::norm_block_rows(rows), blocks = ceil_div(rows, block);
  T* partial = Scratch(args).take<T>(blocks * d);
  parallel_for(blocks, ceil_div(row_grain(d), block), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      T* __restrict acc = partial + b * d;
      std::fill(acc, acc + d, T(0));
      for (int64_t r = b * block; r < std::min(rows, (b + 1) * block); ++r) {
        const T* __restrict dyr = dy + r * d;
        const T* __restrict xr = x + r * d;
        T* __restrict dxr = dx + r * d;
        const T s = rstd[r];
        const T c = dot(dyr, xr, r) * s * s * s / static_cast<T>(row);
        // Two loops instead of a branch in one: it must vectorise.
        if (add_dx) {
#pragma omp simd
          for (int64_t i = 0; i < d; ++i) {
            acc[i] += dyr[i] * xr[i] * s;
            dxr[i] += dyr[i] * (offset + g[i]) * s - xr[i] * c;
          }
        } else {
#pragma omp simd
          for (int64_t i = 0; i < d; ++i) {
            acc[i] += dyr[i] * xr[i] * s;
            dxr[i] = dyr[i] * (offset + g[i]) * s - xr[i] * c;
          }
        }
      }
    }
  });
  for (int64_t i = 0; i < d && !add_dg; ++i) {
    dg[i] = 0;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const T* __restrict acc = partial + b * d;
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      dg[i] += acc[i];
    }
  }
}

}  // namespace

template <typename T>
void rms_norm(const KernelArgs& args) {
  const T *x = in<T>(args, 0), *g = in<T>(args, 1);
  T *y = out<T>(args, 0), *rstd = out<T>(args, 1);
  const int64_t d = count(args.in[1]), rows = count(args.out[1]);
  const T eps = static_cast<T>(args.attrs->f("eps")), offset = weight_offset<T>(args);
  parallel_for(rows, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* __restrict row = x + r * d;
      T* __restrict to = y + r * d;
      const T s = T(1) / std::sqrt(vdot(row, row, d) / static_cast<T>(d) + eps);
      rstd[r] = s;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) to[i] = row[i] * s * (offset + g[i]);
    }
  });
}

template <typename T>
void rms_norm_bwd(const KernelArgs& args) {
  const T* g = in<T>(args, 2);
  const int64_t d = count(args.in[2]);
  const T offset = weight_offset<T>(args);
  norm_bwd<T>(args, d,
              [=](const T* dy, const T* x, int64_t) { return weighted_dot(dy, x, g, offset, d); });
}

template <typename T>
void row_sumsq(const KernelArgs& args) {
  const T* x = in<T>(args, 0);
  T* sum = out<T>(args, 0);
  const int64_t rows = args.in[0].dim(0), d = args.in[0].dim(1) * args.in[0].dim(2);
  parallel_for(rows, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) sum[r] = vdot(x + r * d, x + r * d, d);
  });
}

template <typename T>
void row_rstd(const KernelArgs& args) {
  const T* sum = in<T>(args, 0);
  T* rstd = out<T>(args, 0);
  const T row = static_cast<T>(args.attrs->i("row")), eps = static_cast<T>(args.attrs->f("eps"));
  for (int64_t r = 0; r < count(args.in[0]); ++r) {
    rstd[r] = T(1) / std::sqrt(sum[r] / row + eps);
  }
}

template <typename T>
void row_normed(const KernelArgs& args) {
  const T *x = in<T>(args, 0), *g = in<T>(args, 1), *rstd = in<T>(args, 2);
  T* y = out<T>(args, 0);
  const int64_t rows = args.in[0].dim(0), d = count(args.in[1]);
  const T offset = weight_offset<T>(args);
  parallel_for(rows, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* __restrict row = x + r * d;
      T* __restrict to = y + r * d;
      const T s = rstd[r];
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) to[i] = row[i] * s * (offset + g[i]);
    }
  });
}

template <typename T>
void row_dot(const KernelArgs& args) {
  const T *dy = in<T>(args, 0), *x = in<T>(args, 1), *g = in<T>(args, 2);
  T* dot = out<T>(args, 0);
  const int64_t rows = args.in[1].dim(0), d = count(args.in[2]);
  const T offset = weight_offset<T>(args);
  parallel_for(rows, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      dot[r] = weighted_dot(dy + r * d, x + r * d, g, offset, d);
    }
  });
}

template <typename T>
void row_normed_bwd(const KernelArgs& args) {
  const T* dots = in<T>(args, 4);
  norm_bwd<T>(args, args.attrs->i("row"),
              [=](const T*, const T*, int64_t number) { return dots[number]; });
}

HOCKET_KERNEL(rms_norm)
HOCKET_KERNEL(rms_norm_bwd)
HOCKET_KERNEL(row_sumsq)
HOCKET_KERNEL(row_rstd)
HOCKET_KERNEL(row_normed)
HOCKET_KERNEL(row_dot)
HOCKET_KERNEL(row_normed_bwd)

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding, the half-rotation of Hugging Face models: with angle
// a = pos * f_i, y1 = x1 cos a - x2 sin a and y2 = x2 cos a + x1 sin a for the halves x1, x2 of the
// dims of a head that turn; the rest passes. `inverse` turns back (the gradient). Cosine and sine
// have a factor under some scalings (ops/rope_frequencies.h).
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "ops/rope_frequencies.h"

namespace hocket::kernels::HOCKET_CPU {
template <typename T>
void rope(const KernelArgs& args) {
  const T* x = in<T>(args, 0);
  const int32_t* pos = in<int32_t>(args, 1);
  T* y = out<T>(args, 0);
  const int64_t tokens = args.in[0].dim(0), heads = args.in[0].dim(1), d = args.in[0].dim(2);
  const int64_t turned = args.attrs->i_or("dims", d), half = turned / 2;
  const double sign = args.attrs->i_or("inverse", 0) ? -1 : 1;
  Scratch scratch(args);
  double* f = scratch.take<double>(half);
  const double factor = ops::rope_frequencies(*args.attrs, {f, static_cast<size_t>(half)});
  // cos and sin of every position. Packed documents share positions below the token count: then
  // one table, its angles (32 q + s) f composed in double from those of 32 q and of s. Otherwise
  // one row per token.
  int32_t top = -1;
  bool table = true;
  for (int64_t t = 0; t < tokens; ++t) {
    top = std::max(top, pos[t]);
    table = table && pos[t] >= 0;
  }
  table = table && top < tokens;
  T* cs = scratch.take<T>(tokens * turned);
  auto angle = [&](int64_t p, int64_t i, double& c, double& s) {
    const double a = static_cast<double>(p) * f[i];
    c = std::cos(a);
    s = std::sin(a);
  };
  if (table) {
    constexpr int64_t kStep = ops::kRopeStep;
    const int64_t coarse = top / kStep + 1;
    double* fine = scratch.take<double>(kStep * turned);
    double* base = scratch.take<double>(coarse * turned);
    parallel_for(kStep + coarse, ceil_div(512, turned), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        double* to = r < kStep ? fine + r * turned : base + (r - kStep) * turned;
        for (int64_t i = 0; i < half; ++i) {
          angle(r < kStep ? r : (r - kStep) * kStep, i, to[i], to[half + i]);
        }
      }
    });
    const double sine = sign * factor;
    parallel_for(top + 1, row_grain(turned), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const double* __restrict a = base + p / kStep * turned;
        const double* __restrict b = fine + p % kStep * turned;
        T* __restrict to = cs + p * turned;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          to[i] = static_cast<T>(factor * (a[i] * b[i] - a[half + i] * b[half + i]));
          to[half + i] = static_cast<T>(sine * (a[half + i] * b[i] + a[i] * b[half + i]));
        }
      }
    });
  } else {
    parallel_for(tokens, ceil_div(512, turned), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          double c, s;
          angle(pos[t], i, c, s);
          cs[t * turned + i] = static_cast<T>(factor * c);
          cs[t * turned + half + i] = static_cast<T>(sign * factor * s);
        }
      }
    });
  }
  parallel_for(tokens, row_grain(heads * d), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* __restrict c = cs + (table ? pos[t] : t) * turned;
      const T* __restrict s = c + half;
      for (int64_t h = 0; h < heads; ++h) {
        const T* __restrict from = x + (t * heads + h) * d;
        T* __restrict to = y + (t * heads + h) * d;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          const T a = from[i], b = from[half + i];
          to[i] = a * c[i] - b * s[i];
          to[half + i] = b * c[i] + a * s[i];
        }
        std::copy(from + turned, from + d, to + turned);
      }
    }
  });
}

HOCKET_KERNEL(rope)

}  // namespace hocket::kernels::HOCKET_CPU

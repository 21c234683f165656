// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding, the half-rotation of Hugging Face models: with angle
// a = pos * f_i, y1 = x1 cos a - x2 sin a and y2 = x2 cos a + x1 sin a for the halves x1, x2 of a
// head; `inverse` turns back (the gradient). Frequencies f_i = theta^(-2i/d), scaled as the
// `rope_type`s "linear" and "llama3" of transformers' modeling_rope_utils define it.
#include <cmath>
#include <numbers>
#include <string>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

void frequencies(const graph::Attrs& attrs, int64_t d, double* f) {
  const double theta = attrs.f("theta");
  const std::string kind = attrs.has("scaling") ? attrs.s("scaling") : "default";
  for (int64_t i = 0; i < d / 2; ++i) {
    f[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    if (kind == "linear") {
      f[i] /= attrs.f("factor");
    } else if (kind == "llama3") {
      const double factor = attrs.f("factor");
      const double low = attrs.f("low_freq_factor");
      const double high = attrs.f("high_freq_factor");
      const double old = attrs.f("original_max_position");
      const double wavelength = 2 * std::numbers::pi / f[i];
      if (wavelength > old / low) {
        f[i] /= factor;
      } else if (wavelength >= old / high) {
        const double smooth = (old / wavelength - low) / (high - low);
        f[i] = (1 - smooth) * f[i] / factor + smooth * f[i];
      }
    } else if (kind != "default") {
      fail("rope", "scaling '{}'; expected default, linear or llama3", kind);
    }
  }
}

}  // namespace

template <typename T>
void rope(const KernelArgs& args) {
  const T* x = in<T>(args, 0);
  const int32_t* pos = in<int32_t>(args, 1);
  T* y = out<T>(args, 0);
  const int64_t tokens = args.in[0].dim(0), heads = args.in[0].dim(1), d = args.in[0].dim(2);
  const int64_t half = d / 2;
  const double sign = args.attrs->i_or("inverse", 0) ? -1 : 1;
  Scratch scratch(args);
  double* f = scratch.take<double>(half);
  frequencies(*args.attrs, d, f);
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
  T* cs = scratch.take<T>(tokens * d);
  auto angle = [&](int64_t p, int64_t i, double& c, double& s) {
    const double a = static_cast<double>(p) * f[i];
    c = std::cos(a);
    s = std::sin(a);
  };
  if (table) {
    constexpr int64_t kStep = ops::kRopeStep;
    const int64_t coarse = top / kStep + 1;
    double* fine = scratch.take<double>(kStep * d);
    double* base = scratch.take<double>(coarse * d);
    parallel_for(kStep + coarse, ceil_div(512, d), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        double* to = r < kStep ? fine + r * d : base + (r - kStep) * d;
        for (int64_t i = 0; i < half; ++i) {
          angle(r < kStep ? r : (r - kStep) * kStep, i, to[i], to[half + i]);
        }
      }
    });
    parallel_for(top + 1, row_grain(d), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const double* __restrict a = base + p / kStep * d;
        const double* __restrict b = fine + p % kStep * d;
        T* __restrict to = cs + p * d;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          to[i] = static_cast<T>(a[i] * b[i] - a[half + i] * b[half + i]);
          to[half + i] = static_cast<T>(sign * (a[half + i] * b[i] + a[i] * b[half + i]));
        }
      }
    });
  } else {
    parallel_for(tokens, ceil_div(512, d), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          double c, s;
          angle(pos[t], i, c, s);
          cs[t * d + i] = static_cast<T>(c);
          cs[t * d + half + i] = static_cast<T>(sign * s);
        }
      }
    });
  }
  parallel_for(tokens, row_grain(heads * d), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* __restrict c = cs + (table ? pos[t] : t) * d;
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
      }
    }
  });
}

HOCKET_KERNEL(rope)

}  // namespace hocket::kernels::HOCKET_CPU

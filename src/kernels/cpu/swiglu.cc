// SPDX-License-Identifier: Apache-2.0
// swiglu: h = silu(g) * u of gu[T,2,F] (gate rows first); backward dg = dh u s (1 + g (1 - s)) and
// du = dh g s with s = sigmoid(g). geglu: the same with gelu for silu. The counts give the number
// of rows of routed tensors.
#include "kernels/cpu/activations.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Writes h = f(g, u). Gate and up are side by side in a row of 2 f; a vector at a time, the rest
/// of the row as a partial vector. Of a routed tensor only the rows that exist are touched.
template <typename T, typename F>
void gated(const KernelArgs& args, const F& f) {
  const T* gu = in<T>(args, 0);
  T* h = out<T>(args, 0);
  const int64_t width = last_dim(args.in[0]);
  const int64_t rows = args.in.size() > 1 ? routed_rows(args.in[1]) : args.in[0].dim(0);
  constexpr int64_t L = kLanes<T>;
  parallel_for(rows, row_grain(4 * width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T *g = gu + r * 2 * width, *u = g + width;
      T* to = h + r * width;
      int64_t i = 0;
      for (; i + L <= width; i += L) {
        store(to + i, f(load(g + i), load(u + i)));
      }
      if (const int64_t n = width - i; n > 0) {
        store_partial(to + i, f(load_partial(g + i, n), load_partial(u + i, n)), n);
      }
    }
  });
}

/// Writes dg and du as f(dh, g, u, dg, du) gives them, by rows as above.
template <typename T, typename F>
void gated_bwd(const KernelArgs& args, const F& f) {
  const T *dh = in<T>(args, 0), *gu = in<T>(args, 1);
  T* dgu = out<T>(args, 0);
  const int64_t width = last_dim(args.in[1]);
  const int64_t rows = args.in.size() > 2 ? routed_rows(args.in[2]) : args.in[1].dim(0);
  constexpr int64_t L = kLanes<T>;
  parallel_for(rows, row_grain(4 * width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T *d = dh + r * width, *g = gu + r * 2 * width, *u = g + width;
      T *dg = dgu + r * 2 * width, *du = dg + width;
      Vec<T> a, b;
      int64_t i = 0;
      for (; i + L <= width; i += L) {
        f(load(d + i), load(g + i), load(u + i), a, b);
        store(dg + i, a), store(du + i, b);
      }
      if (const int64_t n = width - i; n > 0) {
        f(load_partial(d + i, n), load_partial(g + i, n), load_partial(u + i, n), a, b);
        store_partial(dg + i, a, n), store_partial(du + i, b, n);
      }
    }
  });
}

template <typename T, typename Function>
void gated_by(const KernelArgs& args) {
  gated<T>(args, [](Vec<T> g, Vec<T> u) { return Function::value(g) * u; });
}
template <typename T, typename Function>
void gated_by_bwd(const KernelArgs& args) {
  gated_bwd<T>(args, [](Vec<T> d, Vec<T> g, Vec<T> u, Vec<T>& dg, Vec<T>& du) {
    const auto [value, slope] = Function::both(g);
    dg = d * u * slope;
    du = d * value;
  });
}

bool approximates(const KernelArgs& args) { return args.attrs->s("approximate") == "tanh"; }

}  // namespace

template <typename T>
void swiglu(const KernelArgs& args) {
  gated<T>(args, [](Vec<T> g, Vec<T> u) { return g * sigmoid<T>(g) * u; });
}

template <typename T>
void swiglu_bwd(const KernelArgs& args) {
  gated_bwd<T>(args, [](Vec<T> d, Vec<T> g, Vec<T> u, Vec<T>& dg, Vec<T>& du) {
    const Vec<T> s = sigmoid<T>(g);
    dg = d * u * s * (T(1) + g * (T(1) - s));
    du = d * g * s;
  });
}

template <typename T>
void geglu(const KernelArgs& args) {
  approximates(args) ? gated_by<T, GeluTanh<T>>(args) : gated_by<T, Gelu<T>>(args);
}

template <typename T>
void geglu_bwd(const KernelArgs& args) {
  approximates(args) ? gated_by_bwd<T, GeluTanh<T>>(args) : gated_by_bwd<T, Gelu<T>>(args);
}

HOCKET_KERNEL(swiglu)
HOCKET_KERNEL(swiglu_bwd)
HOCKET_KERNEL(geglu)
HOCKET_KERNEL(geglu_bwd)

}  // namespace hocket::kernels::HOCKET_CPU

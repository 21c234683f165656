// SPDX-License-Identifier: Apache-2.0
// swiglu: h = silu(g) * u of gu[T,2,F] (gate rows first); backward dg = dh u s (1 + g (1 - s)) and
// du = dh g s with s = sigmoid(g). The counts give the number of rows of routed tensors.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

template <typename T>
[[gnu::always_inline]] inline Vec<T> sigmoid(Vec<T> g) {
  return T(1) / (T(1) + vexp(-g));
}

}  // namespace

template <typename T>
void swiglu(const KernelArgs& args) {
  const T* gu = in<T>(args, 0);
  T* h = out<T>(args, 0);
  const int64_t f = last_dim(args.in[0]);
  const int64_t rows = args.in.size() > 1 ? routed_rows(args.in[1]) : args.in[0].dim(0);
  constexpr int64_t L = kLanes<T>;
  parallel_for(rows, row_grain(4 * f), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T *g = gu + r * 2 * f, *u = g + f;
      T* to = h + r * f;
      int64_t i = 0;
      for (; i + L <= f; i += L) {
        const Vec<T> x = load(g + i);
        store(to + i, x * sigmoid<T>(x) * load(u + i));
      }
      if (i < f) {
        const Vec<T> x = load_partial(g + i, f - i);
        store_partial(to + i, x * sigmoid<T>(x) * load_partial(u + i, f - i), f - i);
      }
    }
  });
}

template <typename T>
void swiglu_bwd(const KernelArgs& args) {
  // h = silu(g) u, with g and u side by side in a row of 2 f. A vector at a time, the rest of the
  // row as a partial vector. Of a routed tensor only the rows that exist are touched.
  const T *dh = in<T>(args, 0), *gu = in<T>(args, 1);
  T* dgu = out<T>(args, 0);
  const int64_t f = last_dim(args.in[1]);
  const int64_t rows = args.in.size() > 2 ? routed_rows(args.in[2]) : args.in[1].dim(0);
  constexpr int64_t L = kLanes<T>;
  auto grads = [](Vec<T> d, Vec<T> x, Vec<T> u, Vec<T>& dg, Vec<T>& du) {
    const Vec<T> s = sigmoid<T>(x);
    dg = d * u * s * (T(1) + x * (T(1) - s));
    du = d * x * s;
  };
  parallel_for(rows, row_grain(4 * f), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T *d = dh + r * f, *g = gu + r * 2 * f, *u = g + f;
      T *dg = dgu + r * 2 * f, *du = dg + f;
      Vec<T> a, b;
      int64_t i = 0;
      for (; i + L <= f; i += L) {
        grads(load(d + i), load(g + i), load(u + i), a, b);
        store(dg + i, a), store(du + i, b);
      }
      if (const int64_t n = f - i; n > 0) {
        grads(load_partial(d + i, n), load_partial(g + i, n), load_partial(u + i, n), a, b);
        store_partial(dg + i, a, n), store_partial(du + i, b, n);
      }
    }
  });
}

HOCKET_KERNEL(swiglu)
HOCKET_KERNEL(swiglu_bwd)

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
// activation, scale, lora_scale, softcap and their gradients: element by element, a vector at a
// time. Parts end at whole vectors, so that bits do not depend on the number of threads. The counts
// give the number of rows of routed tensors.
#include "kernels/cpu/activations.h"
#include "kernels/cpu/kernels.h"
#include "ops/lora_scale.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Elements of operand `at`; those of the rows that exist if it is routed.
int64_t elements(const KernelArgs& args, size_t at) {
  const TensorRef& x = args.in[at];
  return x.type->routed() ? routed_rows(args.in[at + 1]) * x.type->row_size() : count(x);
}

/// Calls fn(first element, number of them) for every vector.
template <typename T, typename F>
void parallel_vectors(int64_t n, const F& fn) {
  constexpr int64_t L = kLanes<T>;
  parallel_for(ceil_div(n, L), kGrain / 4 / L, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      fn(v * L, std::min(L, n - v * L));
    }
  });
}

/// y = f(x).
template <typename T, typename F>
void each(const KernelArgs& args, const F& f) {
  const T* x = in<T>(args, 0);
  T* y = out<T>(args, 0);
  parallel_vectors<T>(elements(args, 0), [&](int64_t i, int64_t n) {
    if (n == kLanes<T>) {
      store(y + i, f(load(x + i)));
    } else {
      store_partial(y + i, f(load_partial(x + i, n)), n);
    }
  });
}

/// dx = f(dy, x).
template <typename T, typename F>
void each_bwd(const KernelArgs& args, const F& f) {
  const T *dy = in<T>(args, 0), *x = in<T>(args, 1);
  T* dx = out<T>(args, 0);
  parallel_vectors<T>(elements(args, 1), [&](int64_t i, int64_t n) {
    if (n == kLanes<T>) {
      store(dx + i, f(load(dy + i), load(x + i)));
    } else {
      store_partial(dx + i, f(load_partial(dy + i, n), load_partial(x + i, n)), n);
    }
  });
}

/// Calls visit with an object of the attribute's activation function.
template <typename T, typename Visit>
void with_kind(const KernelArgs& args, const Visit& visit) {
  const std::string& kind = args.attrs->s("kind");
  if (kind == "gelu") {
    visit(Gelu<T>{});
  } else if (kind == "gelu_tanh") {
    visit(GeluTanh<T>{});
  } else if (kind == "silu") {
    visit(Silu<T>{});
  } else if (kind == "relu") {
    visit(Relu<T>{});
  } else {
    visit(Relu2<T>{});
  }
}

}  // namespace

template <typename T>
void activation(const KernelArgs& args) {
  with_kind<T>(args, [&](auto function) {
    each<T>(args, [](Vec<T> x) { return decltype(function)::value(x); });
  });
}

template <typename T>
void activation_bwd(const KernelArgs& args) {
  with_kind<T>(args, [&](auto function) {
    each_bwd<T>(args, [](Vec<T> dy, Vec<T> x) { return dy * decltype(function)::both(x).slope; });
  });
}

template <typename T>
void scale(const KernelArgs& args) {
  const T factor = static_cast<T>(args.attrs->f("factor"));
  const T* x = in<T>(args, 0);
  T* y = out<T>(args, 0);
  parallel_for(count(args.in[0]), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = factor * x[i];
  });
}

template <typename T>
void lora_scale(const KernelArgs& args) {
  const std::vector<double> factors = ops::part_numbers(*args.attrs, "factors");
  const std::vector<double> kept = ops::part_numbers(*args.attrs, "kept");
  const int64_t columns = args.in[0].type->dims.back();
  const auto parts = std::ssize(factors);
  const T* x = in<T>(args, 0);
  T* y = out<T>(args, 0);
  if (columns == 0) return;
  const int64_t rows = elements(args, 0) / columns;
  parallel_for(rows, row_grain(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto part = static_cast<size_t>(row % parts);
      const T factor = static_cast<T>(factors[part]);
      const int64_t width = std::min(static_cast<int64_t>(kept[part]), columns);
      for (int64_t i = 0; i < width; ++i) y[row * columns + i] = factor * x[row * columns + i];
      std::fill(y + row * columns + width, y + (row + 1) * columns, T(0));
    }
  });
}

template <typename T>
void softcap(const KernelArgs& args) {
  const T cap = static_cast<T>(args.attrs->f("cap"));
  each<T>(args, [cap](Vec<T> x) { return cap * vtanh(x / cap); });
}

template <typename T>
void softcap_bwd(const KernelArgs& args) {
  const T cap = static_cast<T>(args.attrs->f("cap"));
  each_bwd<T>(args, [cap](Vec<T> dy, Vec<T> x) {
    const Vec<T> y = vtanh(x / cap);
    return dy * (T(1) - y * y);
  });
}

HOCKET_KERNEL(activation)
HOCKET_KERNEL(activation_bwd)
HOCKET_KERNEL(scale)
HOCKET_KERNEL(lora_scale)
HOCKET_KERNEL(softcap)
HOCKET_KERNEL(softcap_bwd)

}  // namespace hocket::kernels::HOCKET_CPU

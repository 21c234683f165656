// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy: the LM head and its loss over chunks of tokens. A chunk's logits are formed
// once, turned in place into their gradient, and multiplied back into dh and dW; there are never
// more than ops::cross_entropy_rows() x V of them.
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Turns a row of logits into scale * (softmax - onehot(target)); returns its negative log
/// likelihood. A negative target zeroes the row. Without `grad` the row keeps the exponentials.
template <typename T>
double softmax_row(T* x, int64_t v, int32_t target, bool grad, T scale) {
  constexpr int64_t L = kLanes<T>;
  if (target < 0) {
    if (grad) {
      std::memset(x, 0, static_cast<size_t>(v) * sizeof(T));
    }
    return 0;
  }
  const T logit = x[target];
  const T top = vmax(x, v);
  const Vec<T> shift = splat(top);
  constexpr int64_t kSpan = 1024;  // summed in T, then added in double
  double sum = 0;
  for (int64_t b = 0; b < v; b += kSpan) {
    const int64_t e = std::min(v, b + kSpan);
    Vec<T> acc{};
    int64_t i = b;
    for (; i + L <= e; i += L) {
      const Vec<T> y = vexp(load(x + i) - shift);
      store(x + i, y);
      acc += y;
    }
    if (i < e) {
      const Vec<T> y = vexp(load_partial(x + i, e - i, -std::numeric_limits<T>::max() / 2) - shift);
      store_partial(x + i, y, e - i);
      acc += y;
    }
    sum += static_cast<double>(lane_sum<T>(acc));
  }
  if (grad) {
    const T factor = static_cast<T>(scale / sum);
#pragma omp simd
    for (int64_t i = 0; i < v; ++i) {
      x[i] *= factor;
    }
    x[target] -= scale;
  }
  return std::log(sum) + static_cast<double>(top) - static_cast<double>(logit);
}

/// The same of logits below a cap, cap * tanh(x / cap): their gradient has its slope, 1 - tanh^2.
/// The row keeps the tanh, and without `grad` no exponential.
template <typename T>
double capped_softmax_row(T* x, int64_t v, int32_t target, bool grad, T scale, T cap) {
  constexpr int64_t L = kLanes<T>, kSpan = 1024;  // summed in T, then added in double
  if (target < 0) {
    if (grad) {
      std::memset(x, 0, static_cast<size_t>(v) * sizeof(T));
    }
    return 0;
  }
  for (int64_t i = 0; i < v; i += L) {
    const int64_t n = std::min(L, v - i);
    if (n == L) {
      store(x + i, vtanh(load(x + i) / cap));
    } else {
      store_partial(x + i, vtanh(load_partial(x + i, n) / cap), n);
    }
  }
  const T of_target = x[target];
  const T top = cap * vmax(x, v);
  double sum = 0;
  for (int64_t begin = 0; begin < v; begin += kSpan) {
    const int64_t end = std::min(v, begin + kSpan);
    Vec<T> span{};
    int64_t i = begin;
    for (; i + L <= end; i += L) {
      span += vexp(cap * load(x + i) - top);
    }
    T rest = 0;
    if (const int64_t n = end - i; n > 0) {
      const Vec<T> y = vexp(cap * load_partial(x + i, n) - top);
      for (int64_t lane = 0; lane < n; ++lane) {
        rest += y[lane];
      }
    }
    sum += static_cast<double>(lane_sum<T>(span) + rest);
  }
  if (grad) {
    const T factor = static_cast<T>(scale / sum);
    const auto slope_and_weight = [&](Vec<T> t) {
      return vexp(cap * t - top) * factor * (T(1) - t * t);
    };
    for (int64_t i = 0; i < v; i += L) {
      const int64_t n = std::min(L, v - i);
      if (n == L) {
        store(x + i, slope_and_weight(load(x + i)));
      } else {
        store_partial(x + i, slope_and_weight(load_partial(x + i, n)), n);
      }
    }
    x[target] -= scale * (T(1) - of_target * of_target);
  }
  return std::log(sum) + static_cast<double>(top) - static_cast<double>(cap * of_target);
}

}  // namespace

template <typename T>
void linear_cross_entropy(const KernelArgs& args) {
  const T *h = in<T>(args, 0), *w = in<T>(args, 1);
  const int32_t* targets = in<int32_t>(args, 2);
  const double scale = *in<double>(args, 3);
  const int64_t tokens = args.in[0].dim(0), d = args.in[0].dim(1), v = args.in[1].dim(0);
  const bool grad = args.attrs->i("grad") != 0;
  const T cap = static_cast<T>(args.attrs->has("softcap") ? args.attrs->f("softcap") : 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    if (targets[t] >= v || (targets[t] < 0 && targets[t] != -100)) {
      fail_run("linear_cross_entropy",
               "target {} at position {}; expected 0 <= target < {} or "
               "-100 (ignored)",
               targets[t], t, v);
    }
  }
  const int64_t chunk = ops::cross_entropy_rows(tokens, v, sizeof(T));
  Scratch scratch(args);
  T* logits = scratch.take<T>(chunk * v);
  double* nll = scratch.take<double>(chunk);
  double loss = 0;
  for (int64_t t = 0; t < tokens; t += chunk) {
    const int64_t n = std::min(chunk, tokens - t);
    gemm<T>({.trans_b = true,
             .m = n,
             .n = v,
             .k = d,
             .a = h + t * d,
             .lda = d,
             .b = w,
             .ldb = d,
             .c = logits,
             .ldc = v},
            scratch);
    parallel_for(n, row_grain(4 * v), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* const row = logits + r * v;
        nll[r] = cap > 0
                     ? capped_softmax_row(row, v, targets[t + r], grad, static_cast<T>(scale), cap)
                     : softmax_row(row, v, targets[t + r], grad, static_cast<T>(scale));
      }
    });
    for (int64_t r = 0; r < n; ++r) {
      loss += nll[r];
    }
    if (!grad) continue;
    T *dh = out<T>(args, 1), *dw = out<T>(args, 2);
    gemm<T>({.m = n,
             .n = d,
             .k = v,
             .a = logits,
             .lda = v,
             .b = w,
             .ldb = d,
             .c = dh + t * d,
             .ldc = d},
            scratch);
    gemm<T>({.trans_a = true,
             .m = v,
             .n = d,
             .k = n,
             .a = logits,
             .lda = v,
             .b = h + t * d,
             .ldb = d,
             .add = accumulates(args, 2) || t > 0,
             .c = dw,
             .ldc = d},
            scratch);
  }
  if (grad && tokens == 0 && !accumulates(args, 2)) {
    std::memset(out<T>(args, 2), 0, static_cast<size_t>(v * d) * sizeof(T));
  }
  double* total = out<double>(args, 0);
  *total = (accumulates(args, 0) ? *total : 0) + scale * loss;
}

HOCKET_KERNEL(linear_cross_entropy)

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy: the LM head and its loss over chunks of tokens. A chunk's logits are formed
// once, turned in place into their gradient, and multiplied back into dh and dW; there are never
// more than ops::cross_entropy_rows() x V of them.
#include <cmath>

#include "kernels/cpu/lm_head.h"
#include "kernels/cpu/vocabulary.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Turns a row of logits into scale * (softmax - onehot(target)); returns its negative log
/// likelihood. Without `grad` the row keeps the exponentials.
template <typename T>
double softmax_row(T* x, int64_t v, int32_t target, bool grad, T scale) {
  constexpr int64_t L = kLanes<T>;
  const T logit = x[target];
  const T top = vmax(x, v);
  const Vec<T> shift = splat(top);
  double sum = 0;
  for (int64_t b = 0; b < v; b += kSumSpan) {
    const int64_t e = std::min(v, b + kSumSpan);
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
  constexpr int64_t L = kLanes<T>;
  tanh_row(x, v, cap);
  const T of_target = x[target];
  const T top = cap * vmax(x, v);
  double sum = 0;
  for (int64_t begin = 0; begin < v; begin += kSumSpan) {
    const int64_t end = std::min(v, begin + kSumSpan);
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
  LmHead<T> head(args);
  const double scale = *in<double>(args, 3);
  const bool grad = args.attrs->i("grad") != 0;
  // A frozen W has no gradient.
  T* const dw = args.out.size() > 2 ? out<T>(args, 2) : nullptr;
  const bool add = dw != nullptr && accumulates(args, 2);
  const T cap = softcap_of<T>(args);
  check_targets("linear_cross_entropy", in<int32_t>(args, 2), head.tokens(), head.vocab());
  double loss = 0;
  head.for_chunks([&](int64_t n) {
    head.for_rows(n, [&](int64_t r) {
      const int32_t target = head.target(r);
      const T factor = static_cast<T>(scale);
      head.terms()[r] =
          cap > 0 ? capped_softmax_row(head.row(r), head.vocab(), target, grad, factor, cap)
                  : softmax_row(head.row(r), head.vocab(), target, grad, factor);
    });
    for (int64_t r = 0; r < n; ++r) {
      loss += head.terms()[r];
    }
    if (grad) {
      head.back(n, out<T>(args, 1), dw, add);
    }
  });
  if (grad) {
    head.clear_others(out<T>(args, 1), dw, add);
  }
  double* total = out<double>(args, 0);
  *total = (accumulates(args, 0) ? *total : 0) + scale * loss;
}

HOCKET_KERNEL(linear_cross_entropy)

}  // namespace hocket::kernels::HOCKET_CPU

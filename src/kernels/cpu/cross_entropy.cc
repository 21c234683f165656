// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy: the LM head and its loss over chunks of tokens. A chunk's logits are formed
// once, turned in place into their gradient, and multiplied back into dh and dW; there are never
// more than ops::cross_entropy_rows() x V of them.
#include <cmath>

#include "kernels/cpu/lm_head.h"
#include "kernels/cpu/vocabulary.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Options of a row: with its gradient, scaled, and with its metrics.
template <typename T>
struct RowOptions {
  bool grad = false;
  T scale = 1;
  bool metrics = false;
};

/// Loss of a token, and its metrics.
struct TokenLoss {
  double nll = 0, entropy = 0;
  bool missed = false;  ///< with RowOptions::metrics
};

/// Sums over a row of e^d and d e^d, d = logit - greatest.
struct RowSums {
  double exponentials = 0, weighted = 0;
  double entropy() const { return std::log(exponentials) - weighted / exponentials; }
};

/// Turns a row of logits into scale * (softmax - onehot(target)). Without `grad` the row keeps the
/// exponentials.
template <typename T>
TokenLoss softmax_row(T* x, int64_t v, int32_t target, const RowOptions<T>& options) {
  constexpr int64_t L = kLanes<T>;
  const T logit = x[target];
  const T top = vmax(x, v);
  const bool missed = options.metrics && misses(x, target, top);
  const Vec<T> shift = splat(top);
  RowSums sums;
  for (int64_t b = 0; b < v; b += kSumSpan) {
    const int64_t e = std::min(v, b + kSumSpan);
    Vec<T> acc{}, weighted{};
    int64_t i = b;
    for (; i + L <= e; i += L) {
      const Vec<T> d = load(x + i) - shift;
      const Vec<T> y = vexp(d);
      store(x + i, y);
      acc += y;
      weighted += y * d;
    }
    if (i < e) {
      const Vec<T> d = load_partial(x + i, e - i, -std::numeric_limits<T>::max() / 2) - shift;
      const Vec<T> y = vexp(d);
      store_partial(x + i, y, e - i);
      acc += y;
      weighted += y * d;
    }
    sums.exponentials += static_cast<double>(lane_sum<T>(acc));
    sums.weighted += static_cast<double>(lane_sum<T>(weighted));
  }
  if (options.grad) {
    const T factor = static_cast<T>(options.scale / sums.exponentials);
#pragma omp simd
    for (int64_t i = 0; i < v; ++i) {
      x[i] *= factor;
    }
    x[target] -= options.scale;
  }
  const double nll =
      std::log(sums.exponentials) + static_cast<double>(top) - static_cast<double>(logit);
  return {nll, sums.entropy(), missed};
}

/// The same of logits below a cap, cap * tanh(x / cap): their gradient has its slope, 1 - tanh^2.
/// The row keeps the tanh, and without `grad` no exponential.
template <typename T>
TokenLoss capped_softmax_row(T* x, int64_t v, int32_t target, const RowOptions<T>& options, T cap) {
  constexpr int64_t L = kLanes<T>;
  tanh_row(x, v, cap);
  const T of_target = x[target];
  const T top = cap * vmax(x, v);
  const bool missed = options.metrics && misses(x, target, top, cap);
  RowSums sums;
  for (int64_t begin = 0; begin < v; begin += kSumSpan) {
    const int64_t end = std::min(v, begin + kSumSpan);
    Vec<T> span{}, weighted{};
    int64_t i = begin;
    for (; i + L <= end; i += L) {
      const Vec<T> d = cap * load(x + i) - top;
      const Vec<T> y = vexp(d);
      span += y;
      weighted += y * d;
    }
    T rest = 0, rest_weighted = 0;
    if (const int64_t n = end - i; n > 0) {
      const Vec<T> d = cap * load_partial(x + i, n) - top;
      const Vec<T> y = vexp(d);
      for (int64_t lane = 0; lane < n; ++lane) {
        rest += y[lane];
        rest_weighted += y[lane] * d[lane];
      }
    }
    sums.exponentials += static_cast<double>(lane_sum<T>(span) + rest);
    sums.weighted += static_cast<double>(lane_sum<T>(weighted) + rest_weighted);
  }
  if (options.grad) {
    const T factor = static_cast<T>(options.scale / sums.exponentials);
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
    x[target] -= options.scale * (T(1) - of_target * of_target);
  }
  const double nll =
      std::log(sums.exponentials) + static_cast<double>(top) - static_cast<double>(cap * of_target);
  return {nll, sums.entropy(), missed};
}

}  // namespace

template <typename T>
void linear_cross_entropy(const KernelArgs& args) {
  LmHead<T> head(args);
  const double scale = *in<double>(args, 3);
  const bool grad = args.attrs->i("grad") != 0;
  const bool metrics = args.attrs->i_or("metrics", 0) != 0;
  const size_t first_metric = args.out.size() - (metrics ? 2 : 0);
  double *entropies = nullptr, *missed = nullptr;
  if (metrics) {
    entropies = out<double>(args, first_metric);
    missed = out<double>(args, first_metric + 1);
    for (size_t i = first_metric; i < args.out.size(); ++i) {
      if (!accumulates(args, static_cast<int>(i))) {
        std::fill_n(out<double>(args, i), head.tokens(), 0.0);
      }
    }
  }
  // A frozen W has no gradient.
  T* const dw = first_metric > 2 ? out<T>(args, 2) : nullptr;
  const bool add = dw != nullptr && accumulates(args, 2);
  const T cap = softcap_of<T>(args);
  check_targets("linear_cross_entropy", in<int32_t>(args, 2), head.tokens(), head.vocab());
  const RowOptions<T> options{grad, static_cast<T>(scale), metrics};
  double loss = 0;
  head.for_chunks([&](int64_t n) {
    head.for_rows(n, [&](int64_t r) {
      const int32_t target = head.target(r);
      const TokenLoss made =
          cap > 0 ? capped_softmax_row(head.row(r), head.vocab(), target, options, cap)
                  : softmax_row(head.row(r), head.vocab(), target, options);
      head.terms()[r] = made.nll;
      if (metrics) {
        entropies[head.token(r)] += made.entropy;
        missed[head.token(r)] += made.missed ? 1 : 0;
      }
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

// SPDX-License-Identifier: Apache-2.0
// Rows of logits, one per token: the target's position, sum, entropy, and gradients of both.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {

/// Elements that are summed in T before they are added in double.
inline constexpr int64_t kSumSpan = 1024;

/// Refuses targets that are neither ignored (-100) nor in the vocabulary.
inline void check_targets(const char* op, const int32_t* targets, int64_t tokens, int64_t vocab) {
  for (int64_t t = 0; t < tokens; ++t) {
    if (targets[t] >= vocab || (targets[t] < 0 && targets[t] != -100)) {
      fail_run(op, "target {} at position {}; expected 0 <= target < {} or -100 (ignored)",
               targets[t], t, vocab);
    }
  }
}

template <typename T>
T greatest(const T* x, int64_t n) {
  return n == 0 ? -std::numeric_limits<T>::infinity() : vmax(x, n);
}

/// Returns the sum of e^(x - top) over n elements; calls keep(i, lanes, vector) for every vector of
/// them.
template <typename T, class Keep>
double sum_of_exponentials(const T* x, int64_t n, T top, const Keep& keep) {
  constexpr int64_t L = kLanes<T>;
  const Vec<T> shift = splat(top);
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSumSpan) {
    const int64_t end = std::min(n, begin + kSumSpan);
    Vec<T> span{};
    int64_t i = begin;
    for (; i + L <= end; i += L) {
      const Vec<T> p = vexp(load(x + i) - shift);
      keep(i, L, p);
      span += p;
    }
    if (i < end) {
      const T none = -std::numeric_limits<T>::max() / 2;
      const Vec<T> p = vexp(load_partial(x + i, end - i, none) - shift);
      keep(i, end - i, p);
      span += p;
    }
    sum += static_cast<double>(lane_sum<T>(span));
  }
  return sum;
}
template <typename T>
double sum_of_exponentials(const T* x, int64_t n, T top) {
  return sum_of_exponentials(x, n, top, [](int64_t, int64_t, Vec<T>) {});
}

/// Returns log sum e^x over n > 0 elements, of which `top` is the greatest.
template <typename T>
double log_sum_exp(const T* x, int64_t n, T top) {
  return static_cast<double>(top) + std::log(sum_of_exponentials(x, n, top));
}
template <typename T>
double log_sum_exp(const T* x, int64_t n) {
  return log_sum_exp(x, n, greatest(x, n));
}

/// Returns whether the first of the greatest elements, which are `top` after a multiplication by
/// `factor` > 0, is at another place than `at`.
template <typename T>
bool misses(const T* x, int64_t at, T top, T factor = 1) {
  return factor * x[at] != top || factor * greatest(x, at) == top;
}

/// Calls fn(i, n) for the vectors of a row, n < kLanes<T> for the last one.
template <typename T, class F>
void for_vectors(int64_t begin, int64_t end, const F& fn) {
  for (int64_t i = begin; i < end; i += kLanes<T>) {
    fn(i, std::min<int64_t>(kLanes<T>, end - i));
  }
}
template <typename T>
Vec<T> load_some(const T* x, int64_t n, T fill) {
  return n == kLanes<T> ? load(x) : load_partial(x, n, fill);
}
template <typename T>
void store_some(T* x, Vec<T> y, int64_t n) {
  n == kLanes<T> ? store(x, y) : store_partial(x, y, n);
}

/// Multiplies a row of logits by 1 / temperature in place: the same bits in every op that forms
/// softmax(z / temperature), also in steps (op scale).
template <typename T>
void temper_row(T* z, int64_t v, T factor) {
  if (factor == 1) return;
  for_vectors<T>(0, v, [&](int64_t i, int64_t n) {
    store_some(z + i, load_some(z + i, n, T(0)) * factor, n);
  });
}

/// Turns logits x into tanh(x / cap) in place.
template <typename T>
void tanh_row(T* x, int64_t v, T cap) {
  for_vectors<T>(0, v, [&](int64_t i, int64_t n) {
    store_some(x + i, vtanh(load_some(x + i, n, T(0)) / cap), n);
  });
}

/// Returns the sum of n logits.
template <typename T>
double sum_of_logits(const T* z, int64_t n) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSumSpan) {
    Vec<T> some{};
    for_vectors<T>(begin, std::min(n, begin + kSumSpan),
                   [&](int64_t i, int64_t lanes) { some += load_some(z + i, lanes, T(0)); });
    sum += static_cast<double>(lane_sum<T>(some));
  }
  return sum;
}

/// Returns -sum p log p over n logits z, p = e^(z - lse).
template <typename T>
double entropy_of(const T* z, int64_t n, double lse) {
  const T near = static_cast<T>(lse);
  const double rest = static_cast<double>(near) - lse;  // log p = (z - near) + rest
  double weighted = 0, sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSumSpan) {
    Vec<T> some_weighted{}, some{};
    for_vectors<T>(begin, std::min(n, begin + kSumSpan), [&](int64_t i, int64_t lanes) {
      const Vec<T> d = load_some(z + i, lanes, near - 80) - near;
      const Vec<T> p = vexp(d);
      some += p;
      some_weighted += p * d;
    });
    sum += static_cast<double>(lane_sum<T>(some));
    weighted += static_cast<double>(lane_sum<T>(some_weighted));
  }
  return -std::exp(rest) * (weighted + rest * sum);
}

/// Gradients of one token's log-probability and entropy, with that entropy.
struct TokenGradients {
  double of_logprob = 0, of_entropy = 0, entropy = 0;
};

/// Turns a row of logits into their gradient in place: -(a + b (log p + H)) p everywhere, and a
/// more at the target (`at`, -1: elsewhere), for gradients a of the log-probability and b of the
/// entropy. `cap` > 0: the row holds tanh of the logits over the cap, and the gradient is that
/// before the cap. p is that of the logits times `temper`, and the gradient is that before.
template <typename T>
void token_gradient_row(T* x, int64_t v, int64_t at, double lse, const TokenGradients& g, T cap,
                        T temper = 1) {
  const T near = static_cast<T>(lse), gain = (cap > 0 ? cap : T(1)) * temper;
  const double rest = static_cast<double>(near) - lse;
  const T factor = static_cast<T>(std::exp(rest)) * temper;
  const T constant = static_cast<T>(-g.of_logprob - g.of_entropy * (g.entropy + rest));
  const T of_entropy = static_cast<T>(g.of_entropy);
  const T slope_of_target = temper * (at >= 0 && cap > 0 ? T(1) - x[at] * x[at] : T(1));
  for_vectors<T>(0, v, [&](int64_t i, int64_t n) {
    const Vec<T> t = load_some(x + i, n, T(0));
    const Vec<T> d = gain * t - near;
    Vec<T> made = vexp(d) * factor * (constant - of_entropy * d);
    if (cap > 0) {
      made *= T(1) - t * t;
    }
    store_some(x + i, made, n);
  });
  if (at >= 0) {
    x[at] += static_cast<T>(g.of_logprob) * slope_of_target;
  }
}

}  // namespace hocket::kernels::HOCKET_CPU

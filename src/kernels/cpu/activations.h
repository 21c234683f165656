// SPDX-License-Identifier: Apache-2.0
// Activation functions on vectors: value(x), and both(x), the value and the slope there.
#pragma once

#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
[[gnu::always_inline]] inline Vec<T> sigmoid(Vec<T> x) {
  return T(1) / (T(1) + vexp(-x));
}

template <typename T>
struct Activated {
  Vec<T> value, slope;
};

/// x * Phi(x), Phi the normal distribution function.
template <typename T>
struct Gelu {
  [[gnu::always_inline]] static Vec<T> below(Vec<T> x) {
    return T(0.5) * (T(1) + verf(x * T(0.7071067811865476)));
  }
  [[gnu::always_inline]] static Vec<T> value(Vec<T> x) { return x * below(x); }
  [[gnu::always_inline]] static Activated<T> both(Vec<T> x) {
    const Vec<T> p = below(x);
    return {x * p, p + x * vexp(x * x * T(-0.5)) * T(0.3989422804014327)};
  }
};

/// x * (1 + tanh(u)) / 2 = x * sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
struct GeluTanh {
  static constexpr T kTwice = T(2 * 0.7978845608028654), kCubic = T(0.044715);
  [[gnu::always_inline]] static Vec<T> below(Vec<T> x) {
    return sigmoid<T>(kTwice * x * (T(1) + kCubic * x * x));
  }
  [[gnu::always_inline]] static Vec<T> value(Vec<T> x) { return x * below(x); }
  [[gnu::always_inline]] static Activated<T> both(Vec<T> x) {
    const Vec<T> s = below(x);
    return {x * s, s + x * s * (T(1) - s) * kTwice * (T(1) + T(3) * kCubic * x * x)};
  }
};

template <typename T>
struct Silu {
  [[gnu::always_inline]] static Vec<T> value(Vec<T> x) { return x * sigmoid<T>(x); }
  [[gnu::always_inline]] static Activated<T> both(Vec<T> x) {
    const Vec<T> s = sigmoid<T>(x);
    return {x * s, s * (T(1) + x * (T(1) - s))};
  }
};

template <typename T>
struct Relu {
  [[gnu::always_inline]] static Vec<T> value(Vec<T> x) { return x < T(0) ? Vec<T>{} : x; }
  [[gnu::always_inline]] static Activated<T> both(Vec<T> x) {
    return {value(x), x > T(0) ? splat(T(1)) : Vec<T>{}};
  }
};

/// The square of relu.
template <typename T>
struct Relu2 {
  [[gnu::always_inline]] static Vec<T> value(Vec<T> x) {
    const Vec<T> r = Relu<T>::value(x);
    return r * r;
  }
  [[gnu::always_inline]] static Activated<T> both(Vec<T> x) {
    const Vec<T> r = Relu<T>::value(x);
    return {r * r, r + r};
  }
};

}  // namespace hocket::kernels::HOCKET_CPU

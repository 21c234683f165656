// SPDX-License-Identifier: Apache-2.0
// Fixed-width vectors (GCC/Clang vector extensions) of the widest kind that the target has, with
// exponential, tanh and erf. Written once for AVX-512, AVX2, SSE and NEON; no intrinsics.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace hocket::kernels::HOCKET_CPU {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif

typedef float VecF __attribute__((vector_size(kVecBytes)));
typedef double VecD __attribute__((vector_size(kVecBytes)));
typedef int32_t VecI __attribute__((vector_size(kVecBytes)));
typedef uint32_t VecU __attribute__((vector_size(kVecBytes)));
typedef int64_t VecL __attribute__((vector_size(kVecBytes)));

template <typename T>
struct VecTraits;
template <>
struct VecTraits<float> {
  using Vec = VecF;
  using Int = VecI;
};
template <>
struct VecTraits<double> {
  using Vec = VecD;
  using Int = VecL;
};
template <typename T>
using Vec = typename VecTraits<T>::Vec;
template <typename T>
inline constexpr int kLanes = kVecBytes / static_cast<int>(sizeof(T));

template <typename T>
[[gnu::always_inline]] inline Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename T>
[[gnu::always_inline]] inline void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}
template <typename T>
[[gnu::always_inline]] inline Vec<T> splat(T x) {
  return x - Vec<T>{};  // folds to a broadcast; x + 0 would not, for x = -0
}

/// The first n (0 < n <= lanes) elements at p; the other lanes hold `fill`.
template <typename T>
[[gnu::always_inline]] inline Vec<T> load_partial(const T* p, int64_t n, T fill = 0) {
  alignas(kVecBytes) T tmp[kLanes<T>];
  for (int i = 0; i < kLanes<T>; ++i) {
    tmp[i] = fill;
  }
  for (int64_t i = 0; i < n; ++i) {
    tmp[i] = p[i];
  }
  return load(tmp);
}
template <typename T>
[[gnu::always_inline]] inline void store_partial(T* p, Vec<T> v, int64_t n) {
  alignas(kVecBytes) T tmp[kLanes<T>];
  store(tmp, v);
  for (int64_t i = 0; i < n; ++i) {
    p[i] = tmp[i];
  }
}

/// Sum and maximum over lanes, always in the same order.
template <typename T>
[[gnu::always_inline]] inline T lane_sum(Vec<T> v) {
  T tmp[kLanes<T>];
  store(tmp, v);
  for (int w = kLanes<T> / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) {
      tmp[i] += tmp[i + w];
    }
  }
  return tmp[0];
}
template <typename T>
[[gnu::always_inline]] inline T lane_max(Vec<T> v) {
  T tmp[kLanes<T>];
  store(tmp, v);
  for (int w = kLanes<T> / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) {
      tmp[i] = tmp[i] > tmp[i + w] ? tmp[i] : tmp[i + w];
    }
  }
  return tmp[0];
}

/// sum a_i b_i, the largest a_i, and sum a_i^2 in double: four chains of vectors, then their lanes,
/// then the rest; the order depends on n and the vector width alone.
template <typename T>
inline T vdot(const T* a, const T* b, int64_t n) {
  constexpr int L = kLanes<T>;
  Vec<T> s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * L <= n; i += 4 * L) {
    s0 += load(a + i) * load(b + i);
    s1 += load(a + i + L) * load(b + i + L);
    s2 += load(a + i + 2 * L) * load(b + i + 2 * L);
    s3 += load(a + i + 3 * L) * load(b + i + 3 * L);
  }
  for (; i + L <= n; i += L) {
    s0 += load(a + i) * load(b + i);
  }
  T sum = lane_sum<T>((s0 + s1) + (s2 + s3));
  for (; i < n; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}
template <typename T>
inline T vmax(const T* a, int64_t n) {
  constexpr int L = kLanes<T>;
  T top = a[0];
  int64_t i = 0;
  if (n >= 4 * L) {
    Vec<T> m0 = load(a), m1 = m0, m2 = m0, m3 = m0;
    for (; i + 4 * L <= n; i += 4 * L) {
      const Vec<T> x0 = load(a + i), x1 = load(a + i + L), x2 = load(a + i + 2 * L),
                   x3 = load(a + i + 3 * L);
      m0 = x0 > m0 ? x0 : m0;
      m1 = x1 > m1 ? x1 : m1;
      m2 = x2 > m2 ? x2 : m2;
      m3 = x3 > m3 ? x3 : m3;
    }
    m0 = m1 > m0 ? m1 : m0;
    m2 = m3 > m2 ? m3 : m2;
    top = lane_max<T>(m2 > m0 ? m2 : m0);
  }
  for (; i < n; ++i) {
    top = a[i] > top ? a[i] : top;
  }
  return top;
}
template <typename T>
inline double vsumsq(const T* a, int64_t n) {
  constexpr int L = kLanes<double>;
  typedef T Half __attribute__((vector_size(L * sizeof(T))));
  VecD s[4] = {};
  int64_t i = 0;
  for (; i + 4 * L <= n; i += 4 * L) {
    for (int j = 0; j < 4; ++j) {
      Half h;
      std::memcpy(&h, a + i + j * L, sizeof h);
      const VecD x = __builtin_convertvector(h, VecD);
      s[j] += x * x;
    }
  }
  double sum = lane_sum<double>((s[0] + s[1]) + (s[2] + s[3]));
  for (; i < n; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(a[i]);
  }
  return sum;
}

/// e^x lane by lane; at most 2 ulp off in the normal range, 0 below it, x clamped at the overflow
/// threshold. Cody-Waite reduction and a Taylor/minimax polynomial (Cephes coefficients).
[[gnu::always_inline]] inline VecF vexp(VecF x) {
  const VecF lo = splat(-87.3365f), hi = splat(88.3762f);
  VecI under = x < lo;
  x = x < lo ? lo : x;
  x = x > hi ? hi : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  VecF n = x * 1.44269504088896341f + magic;
  VecI exponent = reinterpret_cast<VecI>(n) << 23;
  n -= magic;
  VecF r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  VecF p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  VecF y = reinterpret_cast<VecF>(reinterpret_cast<VecI>(p) + exponent);
  return under ? VecF{} : y;
}
[[gnu::always_inline]] inline VecD vexp(VecD x) {
  VecD y = x;
  for (int i = 0; i < kLanes<double>; ++i) {
    y[i] = std::exp(x[i]);
  }
  return y;
}

/// tanh x lane by lane, within 4 ulp. Near 0 x times a polynomial in x^2 (minimax), elsewhere 1 - 2
/// / (1 + e^2|x|).
[[gnu::always_inline]] inline VecF vtanh(VecF x) {
  const VecF size = x < 0.0f ? -x : x;
  const VecF z = x * x;
  VecF p = z * -5.468268191e-3f + 2.041519358e-2f;
  p = p * z - 5.366528058e-2f;
  p = p * z + 1.333041515e-1f;
  p = p * z - 3.333322927e-1f;
  const VecF near = x + x * z * p;
  const VecF far = 1.0f - 2.0f / (1.0f + vexp(size + size));
  return size < 0.65f ? near : (x < 0.0f ? -far : far);
}
[[gnu::always_inline]] inline VecD vtanh(VecD x) {
  VecD y = x;
  for (int i = 0; i < kLanes<double>; ++i) {
    y[i] = std::tanh(x[i]);
  }
  return y;
}

/// erf x lane by lane, within 2e-7. Up to 1 x times a polynomial in x^2, beyond it 1 - e^-q(|x|);
/// both polynomials are minimax.
[[gnu::always_inline]] inline VecF verf(VecF x) {
  const VecF z = x * x;
  VecF p = z * 7.853861100e-5f - 8.010193548e-4f;
  p = p * z + 5.188327677e-3f;
  p = p * z - 2.685381193e-2f;
  p = p * z + 1.128358515e-1f;
  p = p * z - 3.761262582e-1f;
  p = p * z + 1.128379166f;
  const VecF size = x < 0.0f ? -x : x;
  const VecF s = size > 4.0f ? splat(4.0f) : size;  // 1 in f32 from here on
  VecF q = s * -1.915040849e-4f + 2.999540213e-3f;
  q = q * s - 2.205199557e-2f;
  q = q * s + 1.035668883e-1f;
  q = q * s + 6.376000429e-1f;
  q = q * s + 1.127426084f;
  q = q * s + 2.564462115e-4f;
  const VecF far = 1.0f - vexp(-q);
  return size < 1.0f ? x * p : (x < 0.0f ? -far : far);
}
[[gnu::always_inline]] inline VecD verf(VecD x) {
  VecD y = x;
  for (int i = 0; i < kLanes<double>; ++i) {
    y[i] = std::erf(x[i]);
  }
  return y;
}

/// Returns 2^x lane by lane for x <= 0 (not clamped above): 2^x = 2^n 2^r, |r| <= 1/2, with the
/// Taylor series of 2^r to degree 6 (1e-8 relative). Below -126 the result is 2^-126. Masked lanes
/// may have any x: bits are added unsigned, to avoid overflow.
[[gnu::always_inline]] inline VecF vexp2_nonpositive(VecF x) {
  x = x < -126.0f ? splat(-126.0f) : x;
  const float magic = 12582912.0f;
  VecF n = x + magic;
  VecU exponent = reinterpret_cast<VecU>(n) << 23;
  VecF r = x - (n - magic);
  VecF p = r * 1.5403530e-4f + 1.3333558e-3f;
  p = p * r + 9.6181291e-3f;
  p = p * r + 5.5504109e-2f;
  p = p * r + 2.4022651e-1f;
  p = p * r + 6.9314718e-1f;
  p = p * r + 1.0f;
  return reinterpret_cast<VecF>(reinterpret_cast<VecU>(p) + exponent);
}
[[gnu::always_inline]] inline VecD vexp2_nonpositive(VecD x) {
  VecD y = x;
  for (int i = 0; i < kLanes<double>; ++i) {
    y[i] = std::exp2(x[i]);
  }
  return y;
}

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
// Floating-point numbers of one and two bytes: their codes as numbers, and back. Kernels are
// compiled for several instruction sets, and each inlines these functions.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace hocket {

template <typename Code, int kExponentBits, int kMantissaBits, bool kInfinity, bool kSaturates>
struct SmallFloat {
  using Stored = Code;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  /// The exponent of all ones is for infinity and NaN; without infinity only its last code is NaN.
  static constexpr uint32_t kTop = ((1u << kExponentBits) - 1) << kMantissaBits;
  static constexpr uint32_t kNan = kInfinity ? kTop | 1u << (kMantissaBits - 1) : kSign - 1;
  static constexpr uint32_t kLargest = kInfinity ? kTop - 1 : kSign - 2;
  static constexpr uint32_t kBeyond = kSaturates ? kLargest : kTop;

  [[gnu::always_inline]] static inline float decode(Code code) {
    const uint32_t sign = (code & kSign) << (31 - kExponentBits - kMantissaBits);
    const uint32_t magnitude = code & (kSign - 1);
    // A normal number has the float's fields with another bias. A subnormal one is a multiple of
    // the unit of the smallest normal number, which is subtracted again.
    constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
    constexpr uint32_t kOne = kBias == 127 ? 0 : 1u << 23;
    const uint32_t normal = (magnitude << (23 - kMantissaBits)) + kRebias;
    const float units =
        std::bit_cast<float>(normal + kOne) - std::bit_cast<float>(kOne ? kRebias + kOne : 0);
    const bool subnormal = magnitude >> kMantissaBits == 0;
    const uint32_t finite = subnormal ? std::bit_cast<uint32_t>(units) : normal;
    const uint32_t beyond = kInfinity && magnitude == kTop ? 0x7f800000u : 0x7fc00000u;
    return std::bit_cast<float>(sign | (magnitude > kLargest ? beyond : finite));
  }

  /// The nearest number, of two as near the one with the even code.
  template <typename Real>
  [[gnu::always_inline]] static inline Code encode(Real value) {
    using Bits = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;
    constexpr int kWide = std::numeric_limits<Real>::digits - 1;  // bits of its mantissa
    constexpr int kWideBias = std::numeric_limits<Real>::max_exponent - 1;
    constexpr int kShift = kWide - kMantissaBits;
    constexpr Bits kWideSign = Bits{1} << (8 * sizeof(Real) - 1);
    constexpr Bits kWideInfinity = static_cast<Bits>(2 * kWideBias + 1) << kWide;
    constexpr Bits kMinNormal = static_cast<Bits>(1 - kBias + kWideBias) << kWide;
    constexpr Bits kUnitBits = static_cast<Bits>(1 - kBias - kMantissaBits + kWide + kWideBias)
                               << kWide;
    // Computes all cases and selects one: without branches the loop vectorises.
    const Bits bits = std::bit_cast<Bits>(value);
    const Bits magnitude = bits & ~kWideSign;
    const Bits sign = bits >> (8 * sizeof(Real) - 1) << (kExponentBits + kMantissaBits);
    // Half a unit more, and a unit less for ties at an even code; a carry is the next exponent.
    const Bits rebased = magnitude - (static_cast<Bits>(kWideBias - kBias) << kWide);
    const Bits odd = rebased >> kShift & 1;
    const Bits rounded = (rebased + ((Bits{1} << (kShift - 1)) - 1) + odd) >> kShift;
    // Adds a number with the smallest subnormal as its unit, so the processor rounds.
    const Real beside = std::bit_cast<Real>(magnitude) + std::bit_cast<Real>(kUnitBits);
    Bits code = rounded > kLargest ? kBeyond : rounded;
    code = magnitude < kMinNormal ? std::bit_cast<Bits>(beside) - kUnitBits : code;
    code = magnitude > kWideInfinity ? kNan : code;
    return static_cast<Code>(sign | code);
  }
};

using F16 = SmallFloat<uint16_t, 5, 10, true, false>;
using Bf16 = SmallFloat<uint16_t, 8, 7, true, false>;
using F8E4M3 = SmallFloat<uint8_t, 4, 3, false, true>;
using F8E5M2 = SmallFloat<uint8_t, 5, 2, true, true>;

template <typename T>
inline constexpr bool kIsSmallFloat = false;
template <typename Code, int e, int m, bool inf, bool sat>
inline constexpr bool kIsSmallFloat<SmallFloat<Code, e, m, inf, sat>> = true;

namespace small_float_detail {
template <typename T>
struct Stored {
  using Type = T;
};
template <typename T>
requires kIsSmallFloat<T>
struct Stored<T> {
  using Type = typename T::Stored;
};
}  // namespace small_float_detail

/// Memory representation of an element of type T: its code for a SmallFloat, otherwise T.
template <typename T>
using Stored = typename small_float_detail::Stored<T>::Type;

/// The number that a stored element is, exactly.
template <typename T>
[[gnu::always_inline]] inline auto number(Stored<T> stored) {
  if constexpr (kIsSmallFloat<T>) {
    return T::decode(stored);
  } else {
    return stored;
  }
}

}  // namespace hocket

// SPDX-License-Identifier: Apache-2.0
// cast between all plain element types of whole bytes: what rounds and what saturates is said in
// src/ops/cast.cc.
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

using graph::DType;

/// A floating-point type of one or two bytes.
template <DType kDType, typename Code, int kExponentBits, int kMantissaBits, bool kInfinity,
          bool kSaturates>
struct Small {
  using Stored = Code;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kMantissa = kMantissaBits;
  static constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  /// The exponent of all ones is for infinity and NaN; without infinity only its last code is NaN.
  static constexpr uint32_t kTop = ((1u << kExponentBits) - 1) << kMantissaBits;
  static constexpr uint32_t kNan = kInfinity ? kTop | 1u << (kMantissaBits - 1) : kSign - 1;
  static constexpr uint32_t kLargest = kInfinity ? kTop - 1 : kSign - 2;
  static constexpr uint32_t kBeyond = kSaturates ? kLargest : kTop;

  static float decode(Code code) {
    const uint32_t sign = (code & kSign) << (31 - kExponentBits - kMantissaBits);
    const uint32_t magnitude = code & (kSign - 1);
    // A normal number has the float's fields, with another bias. A subnormal one stands for so many
    // units beside the least normal number, which is taken off again.
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

  template <typename Real>
  static Code encode(Real value) {
    using Bits = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;
    constexpr int kWide = std::numeric_limits<Real>::digits - 1;  // bits of its mantissa
    constexpr int kWideBias = std::numeric_limits<Real>::max_exponent - 1;
    constexpr int kShift = kWide - kMantissaBits;
    constexpr Bits kWideSign = Bits{1} << (8 * sizeof(Real) - 1);
    constexpr Bits kWideInfinity = static_cast<Bits>(2 * kWideBias + 1) << kWide;
    constexpr Bits kLeastNormal = static_cast<Bits>(1 - kBias + kWideBias) << kWide;
    constexpr Bits kUnitBits = static_cast<Bits>(1 - kBias - kMantissaBits + kWide + kWideBias)
                               << kWide;
    // All cases are worked out, and one is taken: without branches the loop runs on vectors.
    const Bits bits = std::bit_cast<Bits>(value);
    const Bits magnitude = bits & ~kWideSign;
    const Bits sign = bits >> (8 * sizeof(Real) - 1) << (kExponentBits + kMantissaBits);
    // Half a unit more, and a unit less for ties at an even code; a carry is the next exponent.
    const Bits rebased = magnitude - (static_cast<Bits>(kWideBias - kBias) << kWide);
    const Bits odd = rebased >> kShift & 1;
    const Bits rounded = (rebased + ((Bits{1} << (kShift - 1)) - 1) + odd) >> kShift;
    // Beside a number whose unit is the least subnormal one, the processor rounds.
    const Real beside = std::bit_cast<Real>(magnitude) + std::bit_cast<Real>(kUnitBits);
    Bits code = rounded > kLargest ? kBeyond : rounded;
    code = magnitude < kLeastNormal ? std::bit_cast<Bits>(beside) - kUnitBits : code;
    code = magnitude > kWideInfinity ? kNan : code;
    return static_cast<Code>(sign | code);
  }
};
using F16 = Small<DType::f16, uint16_t, 5, 10, true, false>;
using Bf16 = Small<DType::bf16, uint16_t, 8, 7, true, false>;
using F8E4M3 = Small<DType::f8_e4m3, uint8_t, 4, 3, false, true>;
using F8E5M2 = Small<DType::f8_e5m2, uint8_t, 5, 2, true, true>;

template <typename T>
inline constexpr bool kIsSmall = false;
template <DType dtype, typename Code, int e, int m, bool inf, bool sat>
inline constexpr bool kIsSmall<Small<dtype, Code, e, m, inf, sat>> = true;

template <typename T>
struct StoredAs {
  using Type = T;
};
template <typename T>
requires kIsSmall<T>
struct StoredAs<T> {
  using Type = typename T::Stored;
};
template <typename T>
using Stored = typename StoredAs<T>::Type;

/// The number that a stored element is, exactly.
template <typename From>
[[gnu::always_inline]] inline auto number(Stored<From> stored) {
  if constexpr (kIsSmall<From>) {
    return From::decode(stored);
  } else {
    return stored;
  }
}

/// A double from which rounding to fewer bits gives what the integer itself would give: what does
/// not fit makes the last bit odd.
inline double to_odd(int64_t value) {
  const uint64_t sign = value < 0 ? 1 : 0;
  uint64_t magnitude = sign ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  if (magnitude >> 53) {
    const uint64_t rest = magnitude & 0x7ff;
    magnitude = (magnitude & ~uint64_t{0x7ff}) | (rest ? 0x800 : 0);
  }
  const double wide = static_cast<double>(magnitude);
  return sign ? -wide : wide;
}

template <typename To, typename Number>
[[gnu::always_inline]] inline Stored<To> stored(Number value) {
  if constexpr (kIsSmall<To>) {
    if constexpr (std::is_floating_point_v<Number>) {
      return To::encode(value);
    } else {
      return To::encode(to_odd(value));
    }
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_floating_point_v<Number>) {
    // Both bounds are powers of two, and exact: the upper one is the first number that is too
    // large.
    constexpr Number kBelow = static_cast<Number>(std::numeric_limits<To>::min());
    constexpr Number kAbove = static_cast<Number>(std::numeric_limits<To>::max() / 2 + 1) * 2;
    if (std::isnan(value)) return 0;
    if (value >= kAbove) return std::numeric_limits<To>::max();
    return value <= kBelow ? std::numeric_limits<To>::min() : static_cast<To>(value);
  } else {
    const int64_t wide = value;
    return static_cast<To>(
        std::clamp<int64_t>(wide, std::numeric_limits<To>::min(), std::numeric_limits<To>::max()));
  }
}

template <typename From, typename To>
void convert(const void* from, void* to, int64_t n) {
  const auto* source = static_cast<const Stored<From>*>(from);
  auto* target = static_cast<Stored<To>*>(to);
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      target[i] = stored<To>(number<From>(source[i]));
    }
  });
}

/// Calls visit.operator()<T>() with the type that stands for the element type.
template <typename Visitor>
void with_type(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::f32:
      return visit.template operator()<float>();
    case DType::f64:
      return visit.template operator()<double>();
    case DType::bf16:
      return visit.template operator()<Bf16>();
    case DType::f16:
      return visit.template operator()<F16>();
    case DType::f8_e4m3:
      return visit.template operator()<F8E4M3>();
    case DType::f8_e5m2:
      return visit.template operator()<F8E5M2>();
    case DType::i32:
      return visit.template operator()<int32_t>();
    case DType::i64:
      return visit.template operator()<int64_t>();
    case DType::i8:
      return visit.template operator()<int8_t>();
    case DType::u8:
      return visit.template operator()<uint8_t>();
    default:
      fail_run("cast", "no numbers of {}", to_string(dtype));
  }
}

}  // namespace

void cast(const KernelArgs& args) {
  const TensorRef& from = args.in[0];
  const TensorRef& to = args.out[0];
  with_type(from.type->dtype, [&]<typename From>() {
    with_type(to.type->dtype,
              [&]<typename To>() { convert<From, To>(from.data, to.data, count(to)); });
  });
}

}  // namespace hocket::kernels::HOCKET_CPU

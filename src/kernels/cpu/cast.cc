// SPDX-License-Identifier: Apache-2.0
// cast between all plain element types of whole bytes. src/ops/cast.cc defines rounding and
// saturation.
#include "kernels/cpu/cast.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "base/small_float.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

using graph::DType;

/// Returns a double that rounds to fewer bits like the integer itself: lost bits make the last bit
/// odd.
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
  if constexpr (kIsSmallFloat<To>) {
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
void convert_as(const void* from, void* to, int64_t n) {
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

void convert(DType from, const void* source, DType to, void* target, int64_t n) {
  with_type(from, [&]<typename From>() {
    with_type(to, [&]<typename To>() { convert_as<From, To>(source, target, n); });
  });
}

void cast(const KernelArgs& args) {
  const TensorRef& from = args.in[0];
  const TensorRef& to = args.out[0];
  convert(from.type->dtype, from.data, to.type->dtype, to.data, count(to));
}

}  // namespace hocket::kernels::HOCKET_CPU

// SPDX-License-Identifier: Apache-2.0
#include "tests/number_util.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace hocket::test {

using graph::DType;

namespace {

struct Format {
  int exponent, mantissa;
  bool infinity, saturates;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return {5, 10, true, false};
    case DType::bf16:
      return {8, 7, true, false};
    case DType::f8_e4m3:
      return {4, 3, false, true};
    case DType::f8_e5m2:
      return {5, 2, true, true};
    default:
      throw std::logic_error("no small floating-point type");
  }
}

template <typename T>
void put(double value, std::byte* to) {
  const T element = static_cast<T>(value);
  std::memcpy(to, &element, sizeof element);
}
template <typename T>
double get(const std::byte* from) {
  T element;
  std::memcpy(&element, from, sizeof element);
  return static_cast<double>(element);
}

}  // namespace

uint32_t largest_code(DType dtype) {
  const Format format = format_of(dtype);
  const uint32_t top = ((1u << format.exponent) - 1) << format.mantissa;
  return format.infinity ? top - 1 : (top | ((1u << format.mantissa) - 1)) - 1;
}

double value_of(DType dtype, uint32_t code) {
  const Format format = format_of(dtype);
  const int bias = (1 << (format.exponent - 1)) - 1;
  const uint32_t sign_bit = 1u << (format.exponent + format.mantissa);
  const double sign = code & sign_bit ? -1 : 1;
  code &= sign_bit - 1;
  if (code > largest_code(dtype)) {
    const bool infinite = format.infinity && code == largest_code(dtype) + 1;
    return infinite ? sign * std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::quiet_NaN();
  }
  const int exponent = static_cast<int>(code >> format.mantissa);
  const double mantissa = code & ((1u << format.mantissa) - 1);
  const double unit = std::ldexp(1.0, -format.mantissa);
  return exponent == 0 ? sign * std::ldexp(mantissa * unit, 1 - bias)
                       : sign * std::ldexp(1 + mantissa * unit, exponent - bias);
}

uint32_t code_of(DType dtype, double value) {
  const Format format = format_of(dtype);
  const uint32_t sign = std::signbit(value) ? 1u << (format.exponent + format.mantissa) : 0;
  const uint32_t largest = largest_code(dtype);
  if (std::isnan(value)) return sign | (format.infinity ? largest + 2 : largest + 1);
  value = std::abs(value);
  const double most = value_of(dtype, largest);
  if (value >= most + (most - value_of(dtype, largest - 1)) / 2) {
    return sign | (format.saturates ? largest : largest + 1);
  }
  // Finds the last code with a number not above the value.
  uint32_t low = 0;
  for (uint32_t step = 1u << 15; step > 0; step /= 2) {
    if (low + step <= largest && value_of(dtype, low + step) <= value) {
      low += step;
    }
  }
  if (low == largest) return sign | low;
  const double below = value - value_of(dtype, low);
  const double above = value_of(dtype, low + 1) - value;
  const bool up = above < below || (above == below && low % 2 == 1);
  return sign | (up ? low + 1 : low);
}

void store_element(DType dtype, double value, std::byte* to) {
  switch (dtype) {
    case DType::f32:
      return put<float>(value, to);
    case DType::f64:
      return put<double>(value, to);
    case DType::i32:
      return put<int32_t>(value, to);
    case DType::i64:
      return put<int64_t>(value, to);
    case DType::i8:
      return put<int8_t>(value, to);
    case DType::u8:
      return put<uint8_t>(value, to);
    default:
      break;
  }
  const uint32_t code = code_of(dtype, value);
  if (graph::bits_of(dtype) == 16) {
    return put<uint16_t>(code, to);
  }
  put<uint8_t>(code, to);
}

double load_element(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::f32:
      return get<float>(from);
    case DType::f64:
      return get<double>(from);
    case DType::i32:
      return get<int32_t>(from);
    case DType::i64:
      return get<int64_t>(from);
    case DType::i8:
      return get<int8_t>(from);
    case DType::u8:
      return get<uint8_t>(from);
    default:
      break;
  }
  const double code = graph::bits_of(dtype) == 16 ? get<uint16_t>(from) : get<uint8_t>(from);
  return value_of(dtype, static_cast<uint32_t>(code));
}

}  // namespace hocket::test

// SPDX-License-Identifier: Apache-2.0
#include "graph/finite.h"

#include <cstring>

namespace hocket::graph {

namespace {

/// Mask of the exponent. In the IEEE formats, and those that follow them, an exponent of ones
/// stands for infinity or no number.
constexpr uint64_t exponent_of(int bits, int mantissa) {
  return ((uint64_t{1} << (bits - 1 - mantissa)) - 1) << mantissa;
}

/// Returns the first element with all bits of `mask`.
template <class Bits>
int64_t first_with(uint64_t mask, const void* data, int64_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const Bits all = static_cast<Bits>(mask);
  for (int64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    if ((bits & all) == all) return i;
  }
  return -1;
}

}  // namespace

int64_t first_not_finite(DType dtype, const void* data, int64_t count) {
  switch (dtype) {
    case DType::f64:
      return first_with<uint64_t>(exponent_of(64, 52), data, count);
    case DType::f32:
      return first_with<uint32_t>(exponent_of(32, 23), data, count);
    case DType::bf16:
      return first_with<uint16_t>(exponent_of(16, 7), data, count);
    case DType::f16:
      return first_with<uint16_t>(exponent_of(16, 10), data, count);
    case DType::f8_e5m2:
      return first_with<uint8_t>(exponent_of(8, 2), data, count);
    // No infinity: the one pattern of ones, of either sign, is no number.
    case DType::f8_e4m3:
      return first_with<uint8_t>(0x7f, data, count);
    case DType::f8_e8m0:
      return first_with<uint8_t>(0xff, data, count);
    case DType::f4_e2m1:
    case DType::i4:
    case DType::i8:
    case DType::u8:
    case DType::i32:
    case DType::i64:
      return -1;
  }
  return -1;
}

}  // namespace hocket::graph

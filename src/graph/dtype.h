// SPDX-License-Identifier: Apache-2.0
// Element types.
#pragma once

#include <cstdint>
#include <string_view>

namespace hocket::graph {

/// Named as in safetensors and torch, in lower case. f8_e4m3 is torch's float8_e4m3fn (448 at most,
/// no infinity), f8_e5m2 has infinities. f8_e8m0 is a power of two, 2^(bits - 127): a scale, no
/// number to compute with. f4_e2m1 and i4 take half a byte, the even element the low half.
enum class DType : uint8_t {
  f32,
  f64,
  bf16,
  i32,
  i64,
  f16,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f4_e2m1,
  i8,
  u8,
  i4,
};
inline constexpr int kNumDTypes = 13;

int64_t bits_of(DType dtype);
/// Bytes of an element. Throws Error for a type of less than a byte.
int64_t size_of(DType dtype);
const char* to_string(DType dtype);
DType parse_dtype(std::string_view text);  ///< inverse of to_string; throws Error
/// Returns whether the type has an exponent and gradients. f8_e8m0 does not.
bool is_floating(DType dtype);

}  // namespace hocket::graph

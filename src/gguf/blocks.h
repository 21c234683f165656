// SPDX-License-Identifier: Apache-2.0
// Element types of GGUF files. Elements are stored in blocks of neighbours that share scales; a
// type without scales has blocks of one element.
#pragma once

#include <cstdint>
#include <string>

namespace hocket::gguf {

/// Types that are read. The values are the format's.
enum class ElementType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30
};

/// Storage of one element type.
struct BlockFormat {
  ElementType type;
  const char* name;  ///< in the format's spelling: "Q4_K"
  int64_t elements;  ///< per block
  int64_t bytes;     ///< per block
  /// Turns `count` blocks into numbers, with the roundings of the reference implementation.
  void (*decode)(const uint8_t* blocks, int64_t count, float* numbers);
  /// Turns numbers into `count` blocks. Returns false where a finite number has no code of the
  /// type, or a block of integers a number that is not finite. Null: the type is only read.
  bool (*encode)(const float* numbers, int64_t count, uint8_t* blocks);
};

/// Returns the format of a type by its number in a file; null for one that is not read.
const BlockFormat* find_format(uint32_t type);
const BlockFormat& format_of(ElementType type);

/// Returns the name of any type of the format, also of one that is not read: "Q2_K", "type 99".
std::string type_name(uint32_t type);

/// Lists the types that are read: "F32, F16, ...".
std::string readable_types();

}  // namespace hocket::gguf

// SPDX-License-Identifier: Apache-2.0
#include "gguf/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/small_float.h"

namespace hocket::gguf {
namespace {

constexpr int kBlock = 32;  // elements of the simple quantised types
constexpr int kHalf = kBlock / 2;
constexpr int kSuperBlock = 256;  // elements of the types of two levels ("K")

float half_at(const uint8_t* at) {
  uint16_t code;
  std::memcpy(&code, at, sizeof code);
  return F16::decode(code);
}

void decode_f32(const uint8_t* blocks, int64_t count, float* numbers) {
  std::memcpy(numbers, blocks, static_cast<size_t>(count) * sizeof(float));
}

template <class Code>
void decode_small(const uint8_t* blocks, int64_t count, float* numbers) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t code;
    std::memcpy(&code, blocks + 2 * i, sizeof code);
    numbers[i] = Code::decode(code);
  }
}

/// Q4_0 and Q4_1: the low halves of the bytes are the first 16 elements. With a minimum an element
/// is d * q + m, without one d * (q - 8).
template <bool kMinimum>
void decode_q4(const uint8_t* blocks, int64_t count, float* numbers) {
  constexpr int kHead = kMinimum ? 4 : 2;
  for (int64_t b = 0; b < count; ++b, blocks += kHead + kHalf, numbers += kBlock) {
    const float scale = half_at(blocks);
    const float minimum = kMinimum ? half_at(blocks + 2) : 0;
    for (int j = 0; j < kHalf; ++j) {
      const int packed = blocks[kHead + j];
      if constexpr (kMinimum) {
        numbers[j] = scale * static_cast<float>(packed & 15) + minimum;
        numbers[j + kHalf] = scale * static_cast<float>(packed >> 4) + minimum;
      } else {
        numbers[j] = scale * static_cast<float>((packed & 15) - 8);
        numbers[j + kHalf] = scale * static_cast<float>((packed >> 4) - 8);
      }
    }
  }
}

/// Q5_0 and Q5_1: as Q4, with the fifth bit of every element in a word of 32 bits.
template <bool kMinimum>
void decode_q5(const uint8_t* blocks, int64_t count, float* numbers) {
  constexpr int kWord = kMinimum ? 4 : 2, kHead = kWord + 4;
  for (int64_t b = 0; b < count; ++b, blocks += kHead + kHalf, numbers += kBlock) {
    const float scale = half_at(blocks);
    const float minimum = kMinimum ? half_at(blocks + 2) : 0;
    uint32_t high;
    std::memcpy(&high, blocks + kWord, sizeof high);
    for (int i = 0; i < kBlock; ++i) {
      const int packed = blocks[kHead + i % kHalf];
      const int low = i < kHalf ? packed & 15 : packed >> 4;
      const int value = low | static_cast<int>(high >> i & 1) << 4;
      if constexpr (kMinimum) {
        numbers[i] = scale * static_cast<float>(value) + minimum;
      } else {
        numbers[i] = scale * static_cast<float>(value - 16);
      }
    }
  }
}

void decode_q8_0(const uint8_t* blocks, int64_t count, float* numbers) {
  for (int64_t b = 0; b < count; ++b, blocks += 2 + kBlock, numbers += kBlock) {
    const float scale = half_at(blocks);
    for (int i = 0; i < kBlock; ++i) {
      numbers[i] = scale * static_cast<float>(static_cast<int8_t>(blocks[2 + i]));
    }
  }
}

/// Returns scale and minimum, six bits each, of group `j` of eight: `packed` has 12 bytes.
std::pair<int, int> group_scale(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4};
}

/// Q4_K and Q5_K: eight groups of 32 elements with scales and minima of their own. A pair of groups
/// shares 32 bytes, the low halves are the first one's; Q5_K has fifth bits in 32 bytes, one bit
/// of each for every group.
template <bool kFifthBit>
void decode_q45_k(const uint8_t* blocks, int64_t count, float* numbers) {
  constexpr int kScales = 4, kHigh = kScales + 12, kLow = kHigh + (kFifthBit ? 32 : 0);
  constexpr int kBytes = kLow + kSuperBlock / 2;
  for (int64_t b = 0; b < count; ++b, blocks += kBytes) {
    const float scale = half_at(blocks), minimum = half_at(blocks + 2);
    for (int group = 0; group < 8; ++group, numbers += kBlock) {
      const auto [own_scale, own_minimum] = group_scale(blocks + kScales, group);
      const float d = scale * static_cast<float>(own_scale);
      const float m = minimum * static_cast<float>(own_minimum);
      const uint8_t* low = blocks + kLow + group / 2 * kBlock;
      for (int i = 0; i < kBlock; ++i) {
        int value = group % 2 == 0 ? low[i] & 15 : low[i] >> 4;
        if constexpr (kFifthBit) {
          value |= (blocks[kHigh + i] >> group & 1) << 4;
        }
        numbers[i] = d * static_cast<float>(value) - m;
      }
    }
  }
}

/// Q6_K: 16 groups of 16 elements. A half, 128 elements, has 64 bytes of low bits and 32 bytes of
/// high bits. A byte has four low bits of elements i and i + 64, or two high bits of four elements.
void decode_q6_k(const uint8_t* blocks, int64_t count, float* numbers) {
  constexpr int kHigh = 128, kScales = kHigh + 64, kScale = kScales + 16, kBytes = kScale + 2;
  for (int64_t b = 0; b < count; ++b, blocks += kBytes, numbers += kSuperBlock) {
    const float scale = half_at(blocks + kScale);
    for (int i = 0; i < kSuperBlock; ++i) {
      const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
      const int packed = blocks[half * 64 + quarter % 2 * 32 + at];
      const int low = quarter < 2 ? packed & 15 : packed >> 4;
      const int high = blocks[kHigh + half * 32 + at] >> (2 * quarter) & 3;
      const float d = scale * static_cast<float>(static_cast<int8_t>(blocks[kScales + i / 16]));
      numbers[i] = d * static_cast<float>((low | high << 4) - 32);
    }
  }
}

bool encode_f32(const float* numbers, int64_t count, uint8_t* blocks) {
  std::memcpy(blocks, numbers, static_cast<size_t>(count) * sizeof(float));
  return true;
}

template <class Code>
bool encode_small(const float* numbers, int64_t count, uint8_t* blocks) {
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t code = Code::encode(numbers[i]);
    fits &= std::isfinite(Code::decode(code)) || !std::isfinite(numbers[i]);
    std::memcpy(blocks + 2 * i, &code, sizeof code);
  }
  return fits;
}

/// Encodes Q8_0. The scale is largest / 127, stored as f16; the integers are rounded by the scale
/// before that.
bool encode_q8_0(const float* numbers, int64_t count, uint8_t* blocks) {
  for (int64_t b = 0; b < count; ++b, blocks += 2 + kBlock, numbers += kBlock) {
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) {
      if (!std::isfinite(numbers[i])) return false;
      largest = std::max(largest, std::abs(numbers[i]));
    }
    const float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
    const uint16_t code = F16::encode(scale);
    if (!std::isfinite(F16::decode(code))) return false;
    std::memcpy(blocks, &code, sizeof code);
    for (int i = 0; i < kBlock; ++i) {
      // A subnormal largest number has no finite inverse.
      const float value = std::isfinite(inverse) ? std::round(numbers[i] * inverse) : 0;
      blocks[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(value));
    }
  }
  return true;
}

constexpr BlockFormat kFormats[] = {
    {ElementType::f32, "F32", 1, 4, decode_f32, encode_f32},
    {ElementType::f16, "F16", 1, 2, decode_small<F16>, encode_small<F16>},
    {ElementType::bf16, "BF16", 1, 2, decode_small<Bf16>, encode_small<Bf16>},
    {ElementType::q4_0, "Q4_0", kBlock, 18, decode_q4<false>, nullptr},
    {ElementType::q4_1, "Q4_1", kBlock, 20, decode_q4<true>, nullptr},
    {ElementType::q5_0, "Q5_0", kBlock, 22, decode_q5<false>, nullptr},
    {ElementType::q5_1, "Q5_1", kBlock, 24, decode_q5<true>, nullptr},
    {ElementType::q8_0, "Q8_0", kBlock, 34, decode_q8_0, encode_q8_0},
    {ElementType::q4_k, "Q4_K", kSuperBlock, 144, decode_q45_k<false>, nullptr},
    {ElementType::q5_k, "Q5_K", kSuperBlock, 176, decode_q45_k<true>, nullptr},
    {ElementType::q6_k, "Q6_K", kSuperBlock, 210, decode_q6_k, nullptr}};

/// Types of the format that are not read.
constexpr std::pair<uint32_t, const char*> kOthers[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"}};

}  // namespace

const BlockFormat* find_format(uint32_t type) {
  for (const BlockFormat& format : kFormats) {
    if (static_cast<uint32_t>(format.type) == type) return &format;
  }
  return nullptr;
}

const BlockFormat& format_of(ElementType type) {
  const BlockFormat* format = find_format(static_cast<uint32_t>(type));
  HOCKET_CHECK(format != nullptr, "element type {}", static_cast<uint32_t>(type));
  return *format;
}

std::string type_name(uint32_t type) {
  if (const BlockFormat* format = find_format(type)) return format->name;
  for (const auto& [number, name] : kOthers) {
    if (number == type) return name;
  }
  return fmt::format("type {}", type);
}

std::string readable_types() {
  std::string list;
  for (const BlockFormat& format : kFormats) {
    list += (list.empty() ? "" : ", ") + std::string(format.name);
  }
  return list;
}

}  // namespace hocket::gguf

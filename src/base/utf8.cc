// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstring>

namespace hocket {

int utf8_length(std::string_view text, size_t at) {
  const size_t left = text.size() - at;
  if (left == 0) return 0;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return left >= 2 && tail(1) ? 2 : 0;
  if (first < 0xF0) {
    if (left < 3 || !tail(1) || !tail(2)) return 0;
    if (first == 0xE0 && byte(1) < 0xA0) return 0;
    if (first == 0xED && byte(1) > 0x9F) return 0;
    return 3;
  }
  if (first > 0xF4 || left < 4 || !tail(1) || !tail(2) || !tail(3)) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return 4;
}

size_t utf8_valid_until(std::string_view text, size_t begin) {
  size_t i = begin;
  while (i < text.size()) {
    while (text.size() - i >= 8) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if (word & 0x8080808080808080ULL) break;
      i += 8;
    }
    if (i >= text.size()) break;
    const int length = utf8_length(text, i);
    if (length == 0) break;
    i += static_cast<size_t>(length);
  }
  return i;
}

uint32_t utf8_code_point(std::string_view text, size_t at, int length) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  switch (length) {
    case 1:
      return byte(at);
    case 2:
      return (byte(at) & 0x1F) << 6 | (byte(at + 1) & 0x3F);
    case 3:
      return (byte(at) & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
    default:
      return (byte(at) & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 |
             (byte(at + 3) & 0x3F);
  }
}

void append_utf8(uint32_t c, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_utf8(std::string_view text) { return utf8_valid_until(text, 0) == text.size(); }

}  // namespace hocket

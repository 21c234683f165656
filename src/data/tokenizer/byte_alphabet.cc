// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/byte_alphabet.h"

#include "base/utf8.h"

namespace hocket::data {

const std::array<uint32_t, 256>& byte_alphabet() {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      t[b] = printable ? b : next++;
    }
    return t;
  }();
  return table;
}

std::string to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (const char c : bytes) {
    append_utf8(byte_alphabet()[static_cast<uint8_t>(c)], &out);
  }
  return out;
}

bool from_alphabet(std::string_view text, std::string* out) {
  static const std::array<int16_t, 0x144> byte_of = [] {
    std::array<int16_t, 0x144> t{};
    t.fill(-1);
    for (int16_t b = 0; b < 256; ++b) {
      t[byte_alphabet()[b]] = b;
    }
    return t;
  }();
  out->clear();
  for (size_t i = 0; i < text.size();) {
    const int length = utf8_length(text, i);
    if (length == 0) return false;
    const uint32_t c = utf8_code_point(text, i, length);
    if (c >= byte_of.size() || byte_of[c] < 0) return false;
    out->push_back(static_cast<char>(byte_of[c]));
    i += length;
  }
  return true;
}

}  // namespace hocket::data

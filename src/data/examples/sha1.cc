// SPDX-License-Identifier: Apache-2.0
#include "data/examples/sha1.h"

#include <fmt/format.h>

#include <bit>

#include "base/file.h"

namespace hocket::data {

void Sha1::add(std::string_view bytes) {
  bytes_ += bytes.size();
  for (const char c : bytes) {
    block_[filled_++] = static_cast<uint8_t>(c);
    if (filled_ == kBlock) {
      take_block();
    }
  }
}

void Sha1::take_block() {
  constexpr size_t kRounds = 80;
  std::array<uint32_t, kRounds> words = {};
  for (size_t i = 0; i < 16; ++i) {
    words[i] = uint32_t{block_[4 * i]} << 24 | uint32_t{block_[4 * i + 1]} << 16 |
               uint32_t{block_[4 * i + 2]} << 8 | uint32_t{block_[4 * i + 3]};
  }
  for (size_t i = 16; i < kRounds; ++i) {
    words[i] = std::rotl(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
  }
  auto [a, b, c, d, e] = state_;
  for (size_t i = 0; i < kRounds; ++i) {
    uint32_t mixed = b ^ c ^ d;
    uint32_t constant = i < 40 ? 0x6ed9eba1 : 0xca62c1d6;
    if (i < 20) {
      mixed = (b & c) | (~b & d);
      constant = 0x5a827999;
    } else if (i >= 40 && i < 60) {
      mixed = (b & c) | (b & d) | (c & d);
      constant = 0x8f1bbcdc;
    }
    const uint32_t next = std::rotl(a, 5) + mixed + e + constant + words[i];
    e = d;
    d = c;
    c = std::rotl(b, 30);
    b = a;
    a = next;
  }
  state_[0] += a;
  state_[1] += b;
  state_[2] += c;
  state_[3] += d;
  state_[4] += e;
  filled_ = 0;
}

std::string Sha1::hex() {
  const uint64_t bits = bytes_ * 8;
  add("\x80");
  constexpr size_t kLength = 8;  // bytes of the length at the end of the last block
  while (filled_ != kBlock - kLength) {
    add(std::string_view("\0", 1));
  }
  for (size_t i = 0; i < kLength; ++i) {
    const char byte = static_cast<char>(static_cast<uint8_t>(bits >> (8 * (kLength - 1 - i))));
    add(std::string_view(&byte, 1));
  }
  std::string out;
  for (const uint32_t word : state_) {
    out += fmt::format("{:08x}", word);
  }
  return out;
}

std::string sha1_of_file(const std::string& path) {
  Sha1 sha1;
  read_pieces(path, [&](std::string_view piece) {
    sha1.add(piece);
    return true;
  });
  return sha1.hex();
}

}  // namespace hocket::data

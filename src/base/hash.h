// SPDX-License-Identifier: Apache-2.0
// Hashes that are the same on every machine and run (XXH3, and a 64-bit mixer): names of random
// streams, identity of programs, configs and files. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hocket {

/// A bijection on 64 bits that spreads every input bit (the finaliser of SplitMix64).
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Combines two hashes. Order matters: combine(combine(s, a), b) differs from combine(combine(s,
/// b), a).
constexpr uint64_t hash_combine(uint64_t state, uint64_t value) {
  return mix64(state + 0x9e3779b97f4a7c15ULL + mix64(value));
}

/// XXH3, 64 bits.
uint64_t hash64(std::string_view bytes, uint64_t seed = 0);

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  /// 32 lower-case hexadecimal digits.
  std::string hex() const;
  bool operator==(const Hash128&) const = default;
  auto operator<=>(const Hash128&) const = default;
};

/// XXH3, 128 bits.
Hash128 hash128(std::string_view bytes);

/// Incremental hash128 (and hash64): add("ab"), add("c") equals that of "abc".
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  Hasher& add(std::string_view bytes);
  /// The eight bytes of `value`, least significant first.
  Hasher& add(uint64_t value);
  Hash128 finish() const;
  uint64_t finish64() const;

 private:
  void* state_;
};

}  // namespace hocket

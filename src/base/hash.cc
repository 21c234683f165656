// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace hocket {

uint64_t hash64(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 hash128(std::string_view bytes) {
  const XXH128_hash_t xxh_namespacexxh128_hash_t = XXH3_128bits(bytes.data(), bytes.size());
  return {xxh_namespacexxh128_hash_t.high64, xxh_namespacexxh128_hash_t.low64};
}

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}

Hasher::~Hasher() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

Hasher& Hasher::add(std::string_view bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
  return *this;
}

Hasher& Hasher::add(uint64_t value) {
  char bytes[8];
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(value >> (8 * i));
  }
  return add(std::string_view(bytes, 8));
}

// Finishes the state that both hashes share (tests/base/hash_test.cc).
uint64_t Hasher::finish64() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

Hash128 Hasher::finish() const {
  const XXH128_hash_t xxh_namespacexxh128_hash_t =
      XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_));
  return {xxh_namespacexxh128_hash_t.high64, xxh_namespacexxh128_hash_t.low64};
}

}  // namespace hocket

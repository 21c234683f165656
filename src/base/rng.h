// SPDX-License-Identifier: Apache-2.0
// Random numbers. Everything that a model sees (initialisation, dropout, sampling) is
// counter-based: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011) keyed by (seed, stream, element index), so the numbers do not depend on ranks, threads or
// order. `Rng` is a small sequential generator for tests and data shuffling.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace hocket {

/// One block of Philox4x32-10: 128 random bits for a 128-bit counter under a 64-bit key.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

/// Stream id of a name, the same on every machine (64-bit hash).
uint64_t hash_name(std::string_view name);

/// Returns 64 random bits of element `index`, a half of block `index / 2`: the first for an even
/// index, the second for an odd one. So neighbours share a block.
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);

/// 128 random bits, block `index` of a stream: those of elements 2 index and 2 index + 1.
constexpr std::array<uint32_t, 4> random_block(uint64_t seed, uint64_t stream, uint64_t index) {
  return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// Uniform in (0, 1), 53 bits, never 0 or 1.
double uniform(uint64_t seed, uint64_t stream, uint64_t index);

/// Standard normal by Box-Muller in double: elements 2i and 2i+1 are the cosine and sine branch of
/// the two uniforms of one block.
double normal(uint64_t seed, uint64_t stream, uint64_t index);

/// out[i] = std * normal(seed, stream, first + i), bit for bit, at less cost per element.
void fill_normal(std::span<float> out, uint64_t seed, uint64_t stream, uint64_t first, double std);
void fill_normal(std::span<double> out, uint64_t seed, uint64_t stream, uint64_t first, double std);

/// SplitMix64: 64-bit state, sequential. Not for anything that a model computes.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// Uniform in [0, bound), without bias; `bound` > 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [low, high], both included.
  int64_t between(int64_t low, int64_t high);
  /// Uniform in [0, 1), 53 bits.
  double uniform();
  double normal();
  /// Fisher-Yates.
  template <class Container>
  void shuffle(Container& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[below(i)]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace hocket

// SPDX-License-Identifier: Apache-2.0
// The floating-point parts live here and not in the header: inlined into a file compiled for
// another instruction set they could round differently.
#include "base/rng.h"

#include <cmath>

#include "base/error.h"
#include "base/hash.h"

namespace hocket {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

uint64_t half(const std::array<uint32_t, 4>& b, int which) {
  return uint64_t{b[2 * which]} | uint64_t{b[2 * which + 1]} << 32;
}

// The middle of one of 2^53 equal intervals of (0, 1); rounding keeps the last one below 1.
double to_uniform(uint64_t bits) {
  const double value = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  return value < 1.0 ? value : 1.0 - 0x1p-53;
}

std::pair<double, double> normal_pair(uint64_t seed, uint64_t stream, uint64_t pair) {
  const auto b = random_block(seed, stream, pair);
  const double radius = std::sqrt(-2.0 * std::log(to_uniform(half(b, 0))));
  const double angle = kTwoPi * to_uniform(half(b, 1));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

template <class T>
void fill(std::span<T> out, uint64_t seed, uint64_t stream, uint64_t first, double std) {
  size_t i = 0;
  if (first % 2 == 1 && !out.empty()) {
    out[i++] = static_cast<T>(std * normal(seed, stream, first));
  }
  for (; i + 1 < out.size(); i += 2) {
    const auto [even, odd] = normal_pair(seed, stream, (first + i) / 2);
    out[i] = static_cast<T>(std * even);
    out[i + 1] = static_cast<T>(std * odd);
  }
  if (i < out.size()) {
    out[i] = static_cast<T>(std * normal(seed, stream, first + i));
  }
}

}  // namespace

uint64_t hash_name(std::string_view name) { return hash64(name); }

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  return half(random_block(seed, stream, index / 2), static_cast<int>(index % 2));
}

double uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return to_uniform(random_bits(seed, stream, index));
}

double normal(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto [even, odd] = normal_pair(seed, stream, index / 2);
  return index % 2 == 0 ? even : odd;
}

void fill_normal(std::span<float> out, uint64_t seed, uint64_t stream, uint64_t first, double std) {
  fill(out, seed, stream, first, std);
}

void fill_normal(std::span<double> out, uint64_t seed, uint64_t stream, uint64_t first,
                 double std) {
  fill(out, seed, stream, first, std);
}

uint64_t Rng::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  return mix64(state_);
}

uint64_t Rng::below(uint64_t bound) {
  HOCKET_CHECK(bound > 0, "Rng::below(0)");
  // Lemire's multiply-shift; the rejection removes the bias.
  unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < threshold) {
      product = static_cast<unsigned __int128>(next()) * bound;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

int64_t Rng::between(int64_t low, int64_t high) {
  HOCKET_CHECK(low <= high, "Rng::between({}, {})", low, high);
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
  const uint64_t offset = range == 0 ? next() : below(range);
  return static_cast<int64_t>(static_cast<uint64_t>(low) + offset);
}

double Rng::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Rng::normal() {
  const double u = to_uniform(next());
  return std::sqrt(-2.0 * std::log(u)) * std::cos(kTwoPi * uniform());
}

}  // namespace hocket

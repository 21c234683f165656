// SPDX-License-Identifier: Apache-2.0
// Philox against the known answers of Random123 (kat_vectors), element addressing, and the moments
// and independence of the distributions built on it.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace hocket {
namespace {

using Block = std::array<uint32_t, 4>;

TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, ElementsShareBlocksAndNothingElse) {
  const Block b = philox4x32({5, 0, 0x89abcdef, 0x01234567}, {42, 0});
  const uint64_t stream = 0x0123456789abcdef;
  EXPECT_EQ(random_bits(42, stream, 10), uint64_t{b[0]} | uint64_t{b[1]} << 32);
  EXPECT_EQ(random_bits(42, stream, 11), uint64_t{b[2]} | uint64_t{b[3]} << 32);
  EXPECT_NE(random_bits(42, stream, 10), random_bits(43, stream, 10));
  EXPECT_NE(random_bits(42, stream, 10), random_bits(42, stream + 1, 10));
  EXPECT_NE(random_bits(42, stream, 10), random_bits(42, stream, 10 + (uint64_t{1} << 33)));
  EXPECT_NE(hash_name("layers.0.q"), hash_name("layers.1.q"));
}

// Parts of a tensor filled by different ranks must be the parts of the whole, bit for bit.
TEST(Rng, FillIsTheSameInAnyPieces) {
  std::vector<float> whole(1001);
  fill_normal(std::span(whole), 7, 99, 0, 0.02);
  for (const size_t piece : {1, 2, 3, 64, 333}) {
    std::vector<float> parts(whole.size());
    for (size_t i = 0; i < parts.size(); i += piece) {
      const size_t n = std::min(piece, parts.size() - i);
      fill_normal(std::span(parts).subspan(i, n), 7, 99, i, 0.02);
    }
    EXPECT_EQ(parts, whole) << piece;
  }
  std::vector<double> exact(1001);
  fill_normal(std::span(exact), 7, 99, 0, 0.02);
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(exact[i], 0.02 * normal(7, 99, i)) << i;
    ASSERT_EQ(whole[i], static_cast<float>(exact[i])) << i;
  }
}

TEST(Rng, MomentsOfUniformAndNormal) {
  const int n = 200000;
  double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0, neighbours = 0;
  for (int i = 0; i < n; ++i) {
    const double u = uniform(1, 2, i), z = normal(1, 2, i);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    u1 += u;
    u2 += u * u;
    n1 += z;
    n2 += z * z;
    n4 += z * z * z * z;
    neighbours += z * normal(1, 2, i + 1);
  }
  // Four standard errors of each estimate.
  const double root = std::sqrt(n);
  EXPECT_NEAR(u1 / n, 0.5, 4 * 0.2887 / root);
  EXPECT_NEAR(u2 / n, 1.0 / 3, 4 * 0.2981 / root);
  EXPECT_NEAR(n1 / n, 0, 4 / root);
  EXPECT_NEAR(n2 / n, 1, 4 * 1.4142 / root);
  EXPECT_NEAR(n4 / n, 3, 4 * 9.798 / root);
  EXPECT_NEAR(neighbours / n, 0, 4 / root);
}

TEST(Rng, SequentialNumbersAreThoseOfSplitMix64) {
  // First outputs of SplitMix64 with seed 1234567, as published with the algorithm.
  Rng reference(1234567);
  EXPECT_EQ(reference.next(), 6457827717110365317ULL);
  EXPECT_EQ(reference.next(), 3203168211198807973ULL);
  Rng rng(3);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) {
    ++counts[rng.below(7)];
  }
  for (const int c : counts) {
    EXPECT_NEAR(c, 10000, 4 * std::sqrt(10000.0));
  }
  for (int i = 0; i < 1000; ++i) {
    const int64_t v = rng.between(-2, 2);
    ASSERT_GE(v, -2);
    ASSERT_LE(v, 2);
  }
  rng.between(INT64_MIN, INT64_MAX);
  std::vector<int> order(100);
  std::iota(order.begin(), order.end(), 0);
  const std::vector<int> sorted = order;
  rng.shuffle(order);
  EXPECT_NE(order, sorted);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, sorted);
}

}  // namespace
}  // namespace hocket

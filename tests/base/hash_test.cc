// SPDX-License-Identifier: Apache-2.0
// Hashes: published values, streaming equals whole, order matters.
#include "base/hash.h"

#include <gtest/gtest.h>

#include <set>

namespace hocket {
namespace {

TEST(Hash, MatchesPublishedValues) {
  // XXH3 of the empty input, seed 0, from the xxHash specification's test vectors.
  EXPECT_EQ(hash64(""), 0x2D06800538D394C2ULL);
  EXPECT_EQ(hash128("").hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, StreamingEqualsWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += static_cast<char>(i * 7 + i / 256);
  }
  for (const size_t piece : {1, 7, 64, 1000}) {
    Hasher hasher;
    for (size_t i = 0; i < text.size(); i += piece) {
      hasher.add(text.substr(i, piece));
    }
    EXPECT_EQ(hasher.finish(), hash128(text)) << piece;
    EXPECT_EQ(hasher.finish64(), hash64(text)) << piece;
  }
  EXPECT_EQ(Hasher().finish64(), hash64(""));
  Hasher number;
  number.add(uint64_t{0x0807060504030201});
  EXPECT_EQ(number.finish(), hash128("\1\2\3\4\5\6\7\10"));
}

TEST(Hash, CombineDependsOnOrderAndValue) {
  EXPECT_NE(hash_combine(hash_combine(0, 1), 2), hash_combine(hash_combine(0, 2), 1));
  EXPECT_NE(hash_combine(0, 0), 0u);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 10000; ++i) {
    seen.insert(mix64(i));
  }
  EXPECT_EQ(seen.size(), 10000u);
}

}  // namespace
}  // namespace hocket

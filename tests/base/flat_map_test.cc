// SPDX-License-Identifier: Apache-2.0
// The flat table against std::map, with keys that fall on one place and values that share a key.
#include "base/flat_map.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/rng.h"

namespace hocket {
namespace {

template <class Spread>
void expect_like_map(uint64_t keys) {
  Rng rng(keys);
  FlatMap<int64_t, Spread> table;
  std::map<uint64_t, int64_t> reference;
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < 20'000; ++i) {
      const uint64_t key = rng.below(keys) * 0x1000;
      const auto [value, is_new] = table.insert(key, i);
      const auto [at, expected_new] = reference.emplace(key, i);
      ASSERT_EQ(is_new, expected_new);
      ASSERT_EQ(*value, at->second);
      *value += 1;
      at->second += 1;
    }
    EXPECT_EQ(table.size(), reference.size());
    for (uint64_t k = 0; k < keys; ++k) {
      const int64_t* found = table.find(k * 0x1000);
      const auto at = reference.find(k * 0x1000);
      ASSERT_EQ(found == nullptr, at == reference.end());
      if (found != nullptr) {
        ASSERT_EQ(*found, at->second);
      }
      ASSERT_EQ(table.find(k * 0x1000 + 1), nullptr);
    }
    table.clear();
    reference.clear();
    EXPECT_EQ(table.size(), 0u);
    EXPECT_EQ(table.find(0), nullptr);
  }
}

TEST(FlatMap, BehavesAsAStandardMap) {
  expect_like_map<MixedBits>(1000);
  expect_like_map<MixedBits>(100'000);
  // Below 0x1000 keys, all keys begin at one slot.
  expect_like_map<OwnBits>(300);
}

// Texts under a 2-bit key: every lookup has the collisions that are rare with a 64-bit hash.
TEST(FlatMap, DistinguishesValuesThatShareAKey) {
  std::vector<std::string> texts;
  FlatMap<size_t> table(100);
  for (int i = 0; i < 500; ++i) {
    const std::string text = std::to_string(i % 250);
    const auto same = [&](size_t index) { return texts[index] == text; };
    const uint64_t key = text.size();
    EXPECT_EQ(table.find(key, same) == nullptr, i < 250) << i;
    const auto [index, is_new] = table.insert(key, texts.size(), same);
    EXPECT_EQ(is_new, i < 250);
    if (is_new) {
      texts.push_back(text);
    }
    EXPECT_EQ(*index, static_cast<size_t>(i % 250));
  }
  EXPECT_EQ(table.size(), 250u);
}

}  // namespace
}  // namespace hocket

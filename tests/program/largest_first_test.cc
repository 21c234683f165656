// SPDX-License-Identifier: Apache-2.0
#include "program/largest_first.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/rng.h"

namespace hocket::program {
namespace {

constexpr int64_t kAnyPairs = std::numeric_limits<int32_t>::max();

/// Returns the lifetime of a buffer on one lane, from its first to its last task.
Lifetime of_tasks(int64_t bytes, int32_t first, int32_t last) {
  Lifetime lifetime{.bytes = bytes, .known = {}, .used = {}};
  lifetime.known.fill(-1);
  lifetime.used.fill(-1);
  lifetime.known[0] = first - 1;
  lifetime.used[0] = last;
  return lifetime;
}

int64_t end_of(const std::vector<Lifetime>& all, const std::vector<int64_t>& at) {
  int64_t end = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    end = std::max(end, at[i] + all[i].bytes);
  }
  return end;
}

/// Layers whose gathered parameters live for a pass, and whose activations live until the backward
/// pass, with gradients of the parameters' size.
std::vector<Lifetime> sharded_step(int32_t layers) {
  constexpr int64_t kParameters = 1 << 20, kActivation = 300'000;
  std::vector<Lifetime> all;
  const int32_t last = 2 * layers - 1;
  for (int32_t layer = 0; layer < layers; ++layer) {
    all.push_back(of_tasks(kParameters, 10 * layer - 8, 10 * layer + 5));
    all.push_back(of_tasks(kActivation, 10 * layer + 1, 10 * (last - layer) + 5));
  }
  for (int32_t step = layers; step <= last; ++step) {
    all.push_back(of_tasks(kParameters, 10 * step - 8, 10 * step + 5));
    all.push_back(of_tasks(2 * kParameters, 10 * step + 3, 10 * step + 12));
    all.push_back(of_tasks(kActivation, 10 * step + 4, 10 * step + 14));
  }
  std::stable_sort(all.begin(), all.end(), [](const Lifetime& left, const Lifetime& right) {
    return left.known[0] < right.known[0];
  });
  return all;
}

TEST(LargestFirst, ShardedParametersLeaveFewGaps) {
  const std::vector<Lifetime> all = sharded_step(24);
  const std::vector<int64_t> at = place_largest_first(all, kAnyPairs);
  ASSERT_EQ(at.size(), all.size());
  int64_t most = 0;
  for (const Lifetime& later : all) {
    int64_t live = later.bytes;
    for (const Lifetime& earlier : all) {
      const bool before = earlier.known[0] < later.known[0];
      live += before && !happened(earlier.used, later.known) ? earlier.bytes : 0;
    }
    most = std::max(most, live);
  }
  const auto peak = static_cast<double>(most);
  EXPECT_GE(static_cast<double>(end_of(all, at)), peak);
  EXPECT_LE(static_cast<double>(end_of(all, at)), 1.05 * peak);
}

TEST(LargestFirst, BuffersThatMeetAreApart) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed);
    std::vector<Lifetime> all;
    const auto below = [&](uint64_t most) { return static_cast<int32_t>(rng.below(most)); };
    int32_t first = 0;
    for (uint64_t count = 1 + rng.below(80); count > 0; --count) {
      first += below(3);
      all.push_back(of_tasks(1 + below(1000), first, first + below(20)));
      // Some are known to have finished by fewer lanes.
      all.back().used[1] = rng.below(3) == 0 ? first : -1;
      all.back().known[1] = first - 1 - below(10);
    }
    const std::vector<int64_t> at = place_largest_first(all, kAnyPairs);
    ASSERT_EQ(at.size(), all.size());
    int64_t pairs = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_GE(at[i], 0);
      for (size_t j = i + 1; j < all.size(); ++j) {
        if (happened(all[i].used, all[j].known)) continue;
        ++pairs;
        EXPECT_TRUE(at[i] + all[i].bytes <= at[j] || at[j] + all[j].bytes <= at[i])
            << "seed " << seed << ": " << i << " and " << j;
      }
    }
    EXPECT_GE(end_of(all, at), 1);
    EXPECT_EQ(place_largest_first(all, pairs), at);
    if (pairs > 0) {
      EXPECT_TRUE(place_largest_first(all, pairs - 1).empty());
    }
  }
}

TEST(LargestFirst, NothingHasNoAddress) { EXPECT_TRUE(place_largest_first({}, 0).empty()); }

}  // namespace
}  // namespace hocket::program

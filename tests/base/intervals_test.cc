// SPDX-License-Identifier: Apache-2.0
#include "base/intervals.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"

namespace hocket {
namespace {

TEST(Intervals, BehaveAsASetOfNumbers) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    Intervals intervals;
    std::set<int64_t> set;
    for (int i = 0; i < 12; ++i) {
      const int64_t begin = rng.between(0, 40), count = rng.between(0, 9);
      std::vector<int64_t> want, missing, added;
      for (int64_t k = begin; k < begin + count; ++k) {
        if (!set.contains(k)) {
          want.push_back(k);
        }
      }
      const auto list = [](std::vector<int64_t>& to) {
        return [&to](int64_t first, int64_t length) {
          EXPECT_GT(length, 0);
          for (int64_t k = first; k < first + length; ++k) {
            to.push_back(k);
          }
        };
      };
      intervals.missing(begin, count, list(missing));
      intervals.add(begin, count, list(added));
      EXPECT_EQ(missing, want);
      EXPECT_EQ(added, want);
      set.insert(want.begin(), want.end());
    }
  }
}

}  // namespace
}  // namespace hocket

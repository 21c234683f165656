// SPDX-License-Identifier: Apache-2.0
// Numbers of transfers per group that go to hosts: all choices for few groups, one group after
// another for many.
#include "planner/codecs/offload.h"

#include <gtest/gtest.h>

#include <set>

namespace hocket::planner {
namespace {

const auto kNever = [] { return false; };

/// Returns the step time, shortest where 2 of the first group and 1 of the second go, but neither
/// helps alone.
double seconds_of(const OffloadCounts& counts) {
  if (counts == OffloadCounts{2, 1}) return 1;
  return 10 + static_cast<double>(counts[0] + counts[1]);
}

TEST(Offload, TriesAllChoices) {
  std::set<OffloadCounts> seen;
  const OffloadSearch search = choose_offload(
      {3, 2}, 10, 12,
      [&](const OffloadCounts& counts) {
        EXPECT_TRUE(seen.insert(counts).second);
        return std::optional(seconds_of(counts));
      },
      kNever);
  EXPECT_TRUE(search.all_tried);
  EXPECT_EQ(search.choices, 12);
  EXPECT_EQ(seen.size(), 11U);  // none of each is where it begins
  EXPECT_EQ(search.best, (OffloadCounts{2, 1}));
}

TEST(Offload, TriesGroupsOneAfterAnotherIfThereAreTooManyChoices) {
  size_t tried = 0;
  const OffloadSearch search = choose_offload(
      {50, 50, 50}, 200, 4096,
      [&](const OffloadCounts& counts) {
        ++tried;
        double step = 100;
        for (const size_t count : counts) {
          step += count < 7 ? 7.0 - static_cast<double>(count) : static_cast<double>(count) - 7.0;
        }
        return std::optional(step);
      },
      kNever);
  EXPECT_FALSE(search.all_tried);
  EXPECT_EQ(search.choices, 51.0 * 51 * 51);
  EXPECT_EQ(search.best, (OffloadCounts{7, 7, 7}));
  EXPECT_LE(tried, 2U * 3 * 51);
}

TEST(Offload, OffloadsNothingWhereNoChoiceRunsOrTheSearchStops) {
  const auto never = [](const OffloadCounts&) { return std::optional<double>(); };
  EXPECT_EQ(choose_offload({2}, 1, 100, never, kNever).best, (OffloadCounts{0}));
  int tried = 0;
  const auto counted = [&](const OffloadCounts&) {
    ++tried;
    return std::optional<double>(0.5);
  };
  EXPECT_EQ(choose_offload({2}, 1, 100, counted, [] { return true; }).best, (OffloadCounts{0}));
  EXPECT_EQ(tried, 0);
  const OffloadSearch nothing = choose_offload({}, 1, 100, never, kNever);
  EXPECT_TRUE(nothing.all_tried);
  EXPECT_TRUE(nothing.best.empty());
}

}  // namespace
}  // namespace hocket::planner

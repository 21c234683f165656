// SPDX-License-Identifier: Apache-2.0
// Rounding of sizes, and order statistics.
#include "base/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/stats.h"

namespace hocket {
namespace {

TEST(Math, RoundsUp) {
  EXPECT_EQ(ceil_div(0, 64), 0);
  EXPECT_EQ(ceil_div(1, 64), 1);
  EXPECT_EQ(ceil_div(64, 64), 1);
  EXPECT_EQ(ceil_div(65, 64), 2);
  EXPECT_EQ(round_up(0, 64), 0);
  EXPECT_EQ(round_up(1, 64), 64);
  EXPECT_EQ(round_up(64, 64), 64);
  EXPECT_EQ(round_up((int64_t{1} << 40) + 1, 4096), (int64_t{1} << 40) + 4096);
}

TEST(Stats, MedianAndQuantiles) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({9, 1, 5, 6}), 5.5);
  EXPECT_EQ(quantile({4, 0, 3, 1, 2}, 0), 0);
  EXPECT_EQ(quantile({4, 0, 3, 1, 2}, 1), 4);
  EXPECT_EQ(quantile({4, 0, 3, 1, 2}, 0.25), 1);
  EXPECT_EQ(quantile({0, 10}, 0.9), 9);
}

TEST(Stats, IgnoreNonFiniteValues) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(median({nan, 2, INFINITY, 4, -INFINITY}), 3);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_TRUE(std::isnan(quantile({nan}, 0.5)));
}

}  // namespace
}  // namespace hocket

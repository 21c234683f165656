// SPDX-License-Identifier: Apache-2.0
// The lowest loss of evaluations, and when a training ends by it.
#include "train/best.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hocket::train {
namespace {

TEST(Best, KeepsTheLowestLoss) {
  Best best;
  EXPECT_TRUE(best.take(10, 3, 0));
  EXPECT_FALSE(best.take(20, 3, 0));  // equal is not lower
  EXPECT_TRUE(best.take(30, 2.5, 0));
  EXPECT_FALSE(best.take(40, std::nan(""), 0));
  EXPECT_EQ(best.step, 30);
  EXPECT_EQ(best.loss, 2.5);
  EXPECT_EQ(best.worse, 1);
}

TEST(Best, EndsATrainingWhoseLossStopsFalling) {
  engine::TrainSection train;
  Best best;
  best.worse = 100;
  EXPECT_FALSE(best.ends(train));  // 0: it does not
  train.early_stopping.patience = 2;
  best.worse = 0;
  best.take(1, 3, 0.1);
  best.take(2, 2.95, 0.1);  // lower, but not by enough
  EXPECT_EQ(best.step, 2);
  EXPECT_FALSE(best.ends(train));
  best.take(3, 2.8, 0.1);
  EXPECT_EQ(best.worse, 0);
  best.take(4, 3.5, 0.1);
  best.take(5, 3.4, 0.1);
  EXPECT_TRUE(best.ends(train));
  train.early_stopping.patience = 3;  // more patience goes on
  EXPECT_FALSE(best.ends(train));
}

TEST(Best, BeginsAnewWithOtherRows) {
  Best before{"a", "1", 10, 2.5, 3};
  const auto step = [&](const std::string& set, const std::string& rows) {
    const Best best = continued(before, set, rows);
    EXPECT_EQ(best.set, set);
    EXPECT_EQ(best.rows, rows);
    EXPECT_EQ(best.worse, best.step == 0 ? 0 : 3);
    return best.step;
  };
  EXPECT_EQ(step("a", "1"), 10);
  EXPECT_EQ(step("b", "1"), 0);
  EXPECT_EQ(step("a", "2"), 0);
  before.rows.clear();  // checkpoints of before do not name them
  EXPECT_EQ(step("a", "2"), 10);
}

}  // namespace
}  // namespace hocket::train

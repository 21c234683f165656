// SPDX-License-Identifier: Apache-2.0
// The learning rate of every step of small schedules, worked out by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "base/log.h"
#include "train/schedule.h"

namespace hocket::train {
namespace {

engine::TrainSection section(double lr, double min_lr, int64_t warmup) {
  engine::TrainSection t;
  t.lr = lr;
  t.min_lr = min_lr;
  t.warmup_steps = warmup;
  return t;
}

TEST(LearningRate, WarmUpThenHalfACosine) {
  const auto t = section(0.8, 0.2, 4);
  // Quarters of 0.8; then 0.2 + 0.3 (1 + cos(k pi / 4)).
  const double r = std::sqrt(0.5);
  const double want[] = {0.2, 0.4, 0.6, 0.8, 0.5 + 0.3 * r, 0.5, 0.5 - 0.3 * r, 0.2};
  for (int64_t step = 1; step <= 8; ++step) {
    EXPECT_NEAR(learning_rate(t, step, 8), want[step - 1], 1e-15) << "step " << step;
  }
}

TEST(LearningRate, NoWarmUp) {
  const auto t = section(0.5, 0.1, 0);
  // 0.1 + 0.2 (1 + cos(k pi / 3)): 0.4, 0.2, 0.1.
  EXPECT_NEAR(learning_rate(t, 1, 3), 0.4, 1e-15);
  EXPECT_NEAR(learning_rate(t, 2, 3), 0.2, 1e-15);
  EXPECT_NEAR(learning_rate(t, 3, 3), 0.1, 1e-15);
}

TEST(LearningRate, OddEnds) {
  EXPECT_EQ(learning_rate(section(0.5, 0.1, 10), 3, 5), 0.15);  // ends while it warms up
  EXPECT_EQ(learning_rate(section(0.5, 0.1, 10), 5, 5), 0.25);
  EXPECT_NEAR(learning_rate(section(0.5, 0.1, 5), 6, 5), 0.1, 1e-15);  // beyond the last step
  EXPECT_NEAR(learning_rate(section(0.5, 0.1, 2), 99, 5), 0.1, 1e-15);
  EXPECT_EQ(learning_rate(section(0.5, 0.5, 1), 3, 5), 0.5);
}

TEST(LearningRate, EndsAtATenthOfThePeakUnlessTold) {
  engine::TrainSection t;
  t.lr = 1e-5;
  t.warmup_steps = 2;
  EXPECT_DOUBLE_EQ(learning_rate(t, 1, 12), 5e-6);
  EXPECT_DOUBLE_EQ(learning_rate(t, 2, 12), 1e-5);
  EXPECT_DOUBLE_EQ(learning_rate(t, 7, 12), 5.5e-6);  // halfway from 1e-5 to 1e-6
  EXPECT_DOUBLE_EQ(learning_rate(t, 12, 12), 1e-6);
  t.min_lr = 2e-6;
  EXPECT_DOUBLE_EQ(learning_rate(t, 12, 12), 2e-6);
  t.min_lr = 0;
  EXPECT_DOUBLE_EQ(learning_rate(t, 12, 12), 0);
}

TEST(LearningRate, NeverRisesAboveThePeak) {
  engine::TrainSection t;
  t.lr = 1e-5;
  t.min_lr = 1e-4;
  t.warmup_steps = 2;
  for (int64_t step = 2; step <= 12; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate(t, step, 12), 1e-5);
  }
  EXPECT_DOUBLE_EQ(t.final_lr(), 1e-5);
}

// What is told has no more digits than the rate has.
TEST(LearningRate, ToldInFewDigits) {
  std::string told;
  set_log_sink([&](LogLevel, const std::string& line) { told += line; });
  tell_schedule(section(2e-3, 2e-4, 10), 6);
  set_log_sink(nullptr);
  EXPECT_NE(told.find("ends at 0.0012 instead of 0.002"), told.npos) << told;
}

}  // namespace
}  // namespace hocket::train

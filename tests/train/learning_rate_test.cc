// SPDX-License-Identifier: Apache-2.0
// The learning rate of every step of small schedules, worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

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

// The end of the run moves while it goes down: it goes on from where it was, and comes to the same
// end.
TEST(LearningRate, GoesOnWhereTheNumberOfStepsChanges) {
  const auto t = section(0.8, 0.2, 4);
  const Course before{12};
  for (const int64_t end : {9, 12, 40}) {
    const Course after = before.with_end(t, 8, end);
    EXPECT_EQ(after.steps, end);
    EXPECT_NEAR(learning_rate(t, 8, after), learning_rate(t, 8, before), 1e-15);
    EXPECT_NEAR(learning_rate(t, 8, after), 0.5, 1e-15);
    EXPECT_NEAR(learning_rate(t, end, after), 0.2, 1e-15);
    for (int64_t step = 9; step <= end; ++step) {
      EXPECT_LT(learning_rate(t, step, after), learning_rate(t, step - 1, after));
    }
  }
  // Half of the remaining decay, over equally many steps.
  EXPECT_NEAR(learning_rate(t, 24, before.with_end(t, 8, 40)), learning_rate(t, 10, before), 1e-15);
  // While it warms up there is nothing to go on from.
  EXPECT_EQ(learning_rate(t, 7, before.with_end(t, 3, 9)), learning_rate(t, 7, 9));
  // Twice is as good.
  const Course twice = before.with_end(t, 8, 20).with_end(t, 14, 17);
  EXPECT_NEAR(learning_rate(t, 14, twice), learning_rate(t, 14, before.with_end(t, 8, 20)), 1e-15);
  EXPECT_NEAR(learning_rate(t, 17, twice), 0.2, 1e-15);
}

TEST(Minutes, FollowWhatStepsTake) {
  engine::TrainSection t;
  t.minutes = 0.2;
  // Predicted at 118 ms, measured at 15: 101 steps become 800.
  EXPECT_EQ(decide_steps(t, 0.118), 101);
  EXPECT_EQ(corrected_steps(t, 10, 0.15, 0.0149), 805);
  EXPECT_EQ(corrected_steps(t, 10, 0.15, 1.0), 21);
  EXPECT_EQ(corrected_steps(t, 10, 13, 1.0), 10);  // the time is over
  t.eval_every = 50;                               // and evaluations have their share
  EXPECT_EQ(corrected_steps(t, 100, 6, 0.05), 100 + static_cast<int64_t>((12 - 6.24) / 0.052));
}

TEST(Minutes, AreCorrectedMoreAndMoreOftenToTheEnd) {
  std::vector<int64_t> after;
  for (int64_t step = next_correction(0, 100); step < 100; step = next_correction(step, 100)) {
    after.push_back(step);
  }
  EXPECT_EQ(after, (std::vector<int64_t>{10, 20, 40, 70, 85, 92, 96, 98, 99}));
  EXPECT_EQ(next_correction(0, 1), 1);
  EXPECT_EQ(next_correction(300, 1000), 600);
}

// Printed rates have no more digits than the rate has.
TEST(LearningRate, ToldInFewDigits) {
  std::string told;
  set_log_sink([&](LogLevel, const std::string& line) { told += line; });
  tell_schedule(section(2e-3, 2e-4, 10), 6);
  set_log_sink(nullptr);
  EXPECT_NE(told.find("ends at 0.0012 instead of 0.002"), told.npos) << told;
}

}  // namespace
}  // namespace hocket::train

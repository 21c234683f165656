// SPDX-License-Identifier: Apache-2.0
// The learning rate of every step of small schedules, worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/log_util.h"
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

TEST(LearningRate, RisesLinearlyThenFallsAlongHalfACosine) {
  const auto t = section(0.8, 0.2, 4);
  // Quarters of 0.8; then 0.2 + 0.3 (1 + cos(k pi / 4)).
  const double r = std::sqrt(0.5);
  const double want[] = {0.2, 0.4, 0.6, 0.8, 0.5 + 0.3 * r, 0.5, 0.5 - 0.3 * r, 0.2};
  for (int64_t step = 1; step <= 8; ++step) {
    EXPECT_NEAR(learning_rate(t, step, 8), want[step - 1], 1e-15) << "step " << step;
  }
}

TEST(LearningRate, StartsAtItsPeakWithoutWarmUp) {
  const auto t = section(0.5, 0.1, 0);
  // 0.1 + 0.2 (1 + cos(k pi / 3)): 0.4, 0.2, 0.1.
  EXPECT_NEAR(learning_rate(t, 1, 3), 0.4, 1e-15);
  EXPECT_NEAR(learning_rate(t, 2, 3), 0.2, 1e-15);
  EXPECT_NEAR(learning_rate(t, 3, 3), 0.1, 1e-15);
}

TEST(LearningRate, IsDefinedWhenTheWarmUpIsCutOffAndBeyondTheLastStep) {
  EXPECT_EQ(learning_rate(section(0.5, 0.1, 10), 3, 5), 0.15);  // ends while it warms up
  EXPECT_EQ(learning_rate(section(0.5, 0.1, 10), 5, 5), 0.25);
  EXPECT_NEAR(learning_rate(section(0.5, 0.1, 5), 6, 5), 0.1, 1e-15);  // beyond the last step
  EXPECT_NEAR(learning_rate(section(0.5, 0.1, 2), 99, 5), 0.1, 1e-15);
  EXPECT_EQ(learning_rate(section(0.5, 0.5, 1), 3, 5), 0.5);
}

TEST(LearningRate, EndsAtATenthOfThePeakByDefault) {
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

TEST(LearningRate, FollowsTheNamedSchedule) {
  auto t = section(0.8, 0.2, 2);
  const auto rates = [&](std::initializer_list<int64_t> steps) {
    std::vector<double> list;
    for (const int64_t step : steps) {
      list.push_back(learning_rate(t, step, 12));
    }
    return list;
  };
  t.schedule = "constant";
  EXPECT_EQ(rates({1, 2, 3, 12}), (std::vector<double>{0.4, 0.8, 0.8, 0.8}));
  t.schedule = "linear";
  EXPECT_NEAR(rates({7})[0], 0.5, 1e-15);
  EXPECT_NEAR(rates({12})[0], 0.2, 1e-15);
  t.schedule = "wsd";
  t.decay_share = 0.25;  // of 12 steps: the last 3
  EXPECT_EQ(rates({3, 8, 9}), (std::vector<double>{0.8, 0.8, 0.8}));
  EXPECT_NEAR(rates({10})[0], 0.6, 1e-15);
  EXPECT_NEAR(rates({12})[0], 0.2, 1e-15);
  t.decay = "1-sqrt";
  EXPECT_NEAR(rates({10})[0], 0.2 + 0.6 * (1 - std::sqrt(1.0 / 3)), 1e-15);
  t.decay = "cosine";
  EXPECT_NEAR(rates({11})[0], 0.2 + 0.6 * 0.25, 1e-15);
}

TEST(LearningRate, WarmsUpForAShareOfTheSteps) {
  auto t = section(0.8, 0.2, 2);
  t.warmup_share = 0.3;
  EXPECT_EQ(warmup_steps(t, {11}), 4);  // rounded up
  EXPECT_DOUBLE_EQ(learning_rate(t, 2, 11), 0.4);
  // It does not come back where the training becomes longer.
  const Course longer = Course{11}.with_end(t, 5, 100);
  EXPECT_EQ(warmup_steps(t, longer), 5);
  EXPECT_NEAR(learning_rate(t, 5, longer), 0.8, 1e-15);
}

TEST(Epochs, AreRoundedUpToWholeSteps) {
  engine::TrainSection t;
  t.global_batch = 4;
  t.epochs = 1.5;
  EXPECT_EQ(steps_of_epochs(t, 10), 4);
  t.epochs = 2;
  EXPECT_EQ(steps_of_epochs(t, 8), 4);
  t.epochs = 1e-6;
  EXPECT_EQ(steps_of_epochs(t, 10), 1);
}

TEST(Epochs, OfOneStepAreNoted) {
  engine::TrainSection t;
  t.global_batch = 64;
  EXPECT_EQ(note_of_step(t, 64), "");
  EXPECT_EQ(note_of_step(t, 13),
            "a step of train.global_batch 64 reads the data 4.9 times: an epoch has 13 sequences");
}

TEST(Minutes, NumberOfStepsFollowsTheirMeasuredDuration) {
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

TEST(Minutes, StepsAreCorrectedMoreOftenTowardsTheEnd) {
  std::vector<int64_t> after;
  for (int64_t step = next_correction(0, 100); step < 100; step = next_correction(step, 100)) {
    after.push_back(step);
  }
  EXPECT_EQ(after, (std::vector<int64_t>{10, 20, 40, 70, 85, 92, 96, 98, 99}));
  EXPECT_EQ(next_correction(0, 1), 1);
  EXPECT_EQ(next_correction(300, 1000), 600);
}

// Printed rates have no more digits than the rate has.
TEST(LearningRate, IsPrintedInFewDigits) {
  const test::LogLines logged;
  warn_of_schedule(section(2e-3, 2e-4, 10), 6);
  EXPECT_NE(logged.text().find("ends at 0.0012 instead of 0.002"), std::string::npos)
      << logged.text();
}

}  // namespace
}  // namespace hocket::train

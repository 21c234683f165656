// SPDX-License-Identifier: Apache-2.0
// Where the learning rate begins, peaks and ends.
#include <gtest/gtest.h>

#include "train/trainer.h"

namespace hocket::train {
namespace {

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
  for (int64_t step = 2; step <= 12; ++step) EXPECT_DOUBLE_EQ(learning_rate(t, step, 12), 1e-5);
  EXPECT_DOUBLE_EQ(final_learning_rate(t), 1e-5);
}

}  // namespace
}  // namespace hocket::train

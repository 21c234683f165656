// SPDX-License-Identifier: Apache-2.0
#include "diagnose/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"

namespace hocket::diagnose {
namespace {

class MetricsTest : public testing::Test {
 protected:
  Metrics load(const std::string& text) {
    FileWriter file(path_, FileWriter::Mode::create);
    file.write(text);
    file.close();
    return load_metrics(path_);
  }
  void TearDown() override { remove_file(path_); }
  std::string path_ = testing::TempDir() + "hocket_metrics_test.jsonl";
};

TEST_F(MetricsTest, LayersDefaultToConsecutiveNumbers) {
  const Metrics m = load(
      "{\"step\":1,\"moe/load\":[[1,2],[3,4]],\"moe/layers\":[1,3]}\n"
      "{\"step\":2,\"moe/load\":[[1,2],[3,4]],\"moe/layers\":[1]}\n"
      "{\"step\":3,\"moe/load\":[[1,2],[3,4]],\"moe/layers\":\"1, 3\"}\n");
  ASSERT_EQ(m.load.size(), 3u);
  EXPECT_EQ(m.load[0].layers, (std::vector<int64_t>{1, 3}));
  // A value that does not fit counts as missing.
  EXPECT_EQ(m.load[1].layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(m.load[2].layers, (std::vector<int64_t>{0, 1}));
}

TEST_F(MetricsTest, MachineSpeedCountsFromAStep) {
  const Metrics m = load(
      "{\"step\":1,\"train/loss\":8,\"perf/probe_gflops\":99}\n"
      "{\"step\":2,\"train/loss\":8,\"perf/probe_gflops\":40}\n"
      "{\"step\":3,\"train/loss\":8}\n"
      "{\"step\":4,\"train/loss\":8,\"perf/probe_gflops\":50}\n"
      "{\"step\":5,\"train/loss\":8,\"perf/probe_gflops\":60}\n");
  const MachineSpeed speed = speed_of(m, 2);
  EXPECT_DOUBLE_EQ(speed.gflops, 50);
  EXPECT_DOUBLE_EQ(speed.moved, 58.0 / 42 - 1);
  EXPECT_TRUE(std::isnan(speed_of(m, 6).gflops));
  EXPECT_TRUE(std::isnan(speed_of(m, 6).moved));
}

TEST_F(MetricsTest, ComparesSettledStepsOrAll) {
  const Metrics m = load(
      "{\"step\":1,\"train/loss\":8,\"perf/step_s\":5}\n"
      "{\"step\":2,\"train/loss\":8,\"perf/step_s\":4}\n"
      "{\"step\":3,\"train/loss\":8}\n"
      "{\"step\":4,\"train/loss\":8,\"perf/step_s\":3}\n");
  const StepsThatCount late = steps_that_count(m, 1, 3);
  EXPECT_EQ(late.seconds, (std::vector<double>{3}));
  EXPECT_EQ(late.from_step, 3);
  EXPECT_TRUE(late.settled);
  const StepsThatCount all = steps_that_count(m, 2, 20);
  EXPECT_EQ(all.seconds, (std::vector<double>{4, 3}));
  EXPECT_EQ(all.from_step, 2);
  EXPECT_FALSE(all.settled);
  EXPECT_TRUE(steps_that_count(m, 5, 20).seconds.empty());
}

TEST_F(MetricsTest, ReadsEveryKey) {
  const Metrics m = load(
      "{\"step\":0,\"time_s\":0.5,\"train/loss\":8.25,\"train/grad_norm\":2,\"train/lr\":1e-4,"
      "\"perf/tokens_per_s_per_device\":100,\"perf/tflops_per_device\":0.1,\"perf/mfu\":0.4,"
      "\"perf/step_s\":0.25,\"perf/predicted_step_s\":0.24,\"memory/peak_gib\":1.5,"
      "\"moe/load_max_over_mean\":1.2,\"tokens\":2048,\"other\":[1]}\n"
      "\n"
      "{\"step\":0,\"time_s\":0.6,\"eval/loss\":8,\"eval/bits_per_byte\":3.5}\n"
      "{\"step\":0,\"moe/load\":[[1,2],[3,4]]}\r\n"
      "{\"step\":1,\"time_s\":0.8,\"train/loss\":null}");
  ASSERT_EQ(m.train.size(), 2u);
  const TrainPoint& p = m.train[0];
  EXPECT_EQ(p.step, 0);
  EXPECT_EQ(p.time_s, 0.5);
  EXPECT_EQ(p.tokens, 2048);
  EXPECT_EQ(p.loss, 8.25);
  EXPECT_EQ(p.grad_norm, 2);
  EXPECT_EQ(p.lr, 1e-4);
  EXPECT_EQ(p.tokens_per_s, 100);
  EXPECT_EQ(p.tflops, 0.1);
  EXPECT_EQ(p.mfu, 0.4);
  EXPECT_EQ(p.step_s, 0.25);
  EXPECT_EQ(p.predicted_step_s, 0.24);
  EXPECT_EQ(p.peak_gib, 1.5);
  EXPECT_EQ(p.load_max_over_mean, 1.2);
  EXPECT_TRUE(std::isnan(m.train[1].loss));
  EXPECT_TRUE(std::isnan(m.train[1].lr));
  ASSERT_EQ(m.eval.size(), 1u);
  EXPECT_EQ(m.eval[0].bits_per_byte, 3.5);
  ASSERT_EQ(m.load.size(), 1u);
  EXPECT_EQ(m.load[0].load, (std::vector<std::vector<double>>{{1, 2}, {3, 4}}));
  EXPECT_EQ(m.load[0].layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(m.skipped_lines, 0);
}

std::string train_line(int step, double time, double loss) {
  return "{\"step\":" + std::to_string(step) + ",\"time_s\":" + std::to_string(time) +
         ",\"train/loss\":" + std::to_string(loss) + "}\n";
}
std::string eval_line(int step, double bits) {
  return "{\"step\":" + std::to_string(step) +
         ",\"time_s\":1,\"eval/bits_per_byte\":" + std::to_string(bits) + "}\n";
}

TEST_F(MetricsTest, ReadsSetsOfAnEvaluationByName) {
  const Metrics m = load(
      "{\"step\":4,\"time_s\":1,\"eval/chat/loss\":2,\"eval/chat/rewards/chosen\":1,"
      "\"eval/a.b/loss\":3,\"eval/a.b/bits_per_byte\":1.5,\"eval/final\":true}\n"
      "{\"step\":8,\"time_s\":2,\"eval/loss\":7,\"eval/chat/loss\":null}\n");
  ASSERT_EQ(m.eval.size(), 2u);
  EXPECT_TRUE(std::isnan(m.eval[0].loss));
  ASSERT_EQ(m.eval[0].sets.size(), 2u);
  EXPECT_EQ(m.eval[0].sets.at("chat").loss, 2);
  EXPECT_TRUE(std::isnan(m.eval[0].sets.at("chat").bits_per_byte));
  EXPECT_EQ(m.eval[0].sets.at("a.b").bits_per_byte, 1.5);
  EXPECT_EQ(m.eval[1].loss, 7);
  EXPECT_TRUE(std::isnan(m.eval[1].sets.at("chat").loss));
}

// Killed after step 5 with a checkpoint at step 3, once with a clock that restarts.
TEST_F(MetricsTest, ResumedRunsReplaceRepeatedSteps) {
  std::string text;
  for (int s = 0; s <= 5; ++s) {
    text += train_line(s, 10 + s, 100 + s);
    if (s == 2 || s == 5) {
      text += eval_line(s, s);
    }
  }
  text += "{\"step\":6,\"time_s\":16,\"train/lo\n";
  for (int s = 4; s <= 7; ++s) {
    text += train_line(s, s - 3, 200 + s);
  }
  text += eval_line(7, 70);
  const Metrics m = load(text);
  EXPECT_EQ(m.skipped_lines, 1);
  ASSERT_EQ(m.train.size(), 8u);
  for (int s = 0; s <= 7; ++s) {
    EXPECT_EQ(m.train[s].step, s);
    EXPECT_EQ(m.train[s].loss, (s < 4 ? 100 : 200) + s);
    if (s > 0) {
      EXPECT_GE(m.train[s].time_s, m.train[s - 1].time_s);
    }
  }
  ASSERT_EQ(m.eval.size(), 2u);
  EXPECT_EQ(m.eval[0].step, 2);
  EXPECT_EQ(m.eval[1].step, 7);
}

TEST_F(MetricsTest, RaggedLoadIsLeftOut) {
  const Metrics m = load(
      "{\"step\":1,\"train/loss\":1}\n{\"step\":1,\"moe/load\":[[1,2],[3]]}\n"
      "{\"step\":2,\"moe/load\":[]}\n{\"step\":3,\"moe/load\":5}\n");
  EXPECT_TRUE(m.load.empty());
  EXPECT_EQ(m.train.size(), 1u);
}

TEST_F(MetricsTest, FilesWithoutMetricsAreRefused) {
  EXPECT_THROW(load_metrics("/nonexistent/metrics.jsonl"), Error);
  EXPECT_THROW(load(""), Error);
  try {
    load("hello\n{\"a\":1}\n");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("train/loss"), std::string::npos);
  }
}

}  // namespace
}  // namespace hocket::diagnose

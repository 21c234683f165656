// SPDX-License-Identifier: Apache-2.0
// The line that a training shows while it runs.
#include <gtest/gtest.h>

#include "train/metrics.h"

namespace hocket::train {
namespace {

TEST(Progress, PrintsTheRemainingTime) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.step_s = 0.5;
  const auto text = [&](int64_t steps, double eta_s) {
    return progress_text(metrics, steps, eta_s, "");
  };
  EXPECT_NE(text(60, 125).find("  ETA 2 min 05 s  step 500 ms"), std::string::npos)
      << text(60, 125);
  EXPECT_NE(text(60, 8'640'000).find("  ETA 2400 h 00 min"), std::string::npos);
  EXPECT_NE(text(60, 1.59e18).find("  ETA more than 100 days  step"), std::string::npos);
  EXPECT_EQ(text(3, 0).find("ETA"), std::string::npos);
}

TEST(Evaluation, HasTheLossesOfAllSetsInALine) {
  HeldOut own;
  own.nats = 20;
  own.targets = 10;
  own.bytes = 40;
  own.sequences = own.of = 4;
  HeldOut code;
  code.name = "code";
  code.nats = 6;
  code.targets = 2;
  code.sequences = 3;
  code.of = 5;
  code.values = {{"rewards/chosen", 0.5}};
  const std::string line = to_line({own, code}, 7, 1.5, true);
  EXPECT_EQ(line.find("{\"step\":7,\"time_s\":1.5,\"eval/loss\":2,\"eval/bits_per_byte\":"), 0u);
  EXPECT_NE(line.find(",\"eval/code/loss\":3,\"eval/code/rewards/chosen\":0.5,"
                      "\"eval/complete\":false,\"eval/final\":true}"),
            std::string::npos)
      << line;
  EXPECT_EQ(to_line({code}, 7, 1.5, true).find("eval/loss"), std::string::npos);
  const std::string told = evaluation_text({own, code}, 7, 2);
  EXPECT_EQ(told.find("step 7: held-out loss 2.0000, "), 0u) << told;
  EXPECT_NE(told.find("(all held-out files); code loss 3.0000, rewards/chosen 0.5000 (3 of 5 "
                      "sequences, 2"),
            std::string::npos)
      << told;
}

}  // namespace
}  // namespace hocket::train

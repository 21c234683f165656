// SPDX-License-Identifier: Apache-2.0
// The line that a training shows while it runs.
#include <gtest/gtest.h>

#include "train/metrics.h"

namespace hocket::train {
namespace {

TEST(Progress, RestOfTheTime) {
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

}  // namespace
}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
// ctest: serial
// The check is linear and fast: a stage of 100 layers and 64 micro-batches.
#include <gtest/gtest.h>

#include <ctime>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::check {
namespace {

TEST(Scale, HundredLayersTimesSixtyFourMicroBatches) {
  parallel::Plan plan;
  plan.dp = 2;
  plan.num_micro_batches = 64;
  test::Case c = test::make_case(test::dense(100, false), plan);
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t start = std::clock();
    Verdict v = check(c.program, c.graph);
    EXPECT_TRUE(v.ok()) << to_text(v);
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    if (i == 0) {
      std::cout << v.num_tasks << " tasks, " << v.num_buffers << " buffers\n";
    }
  }
  std::cout << "checked in " << best << " s\n";
  EXPECT_LT(best, 1.5);  // 0.35 s on the machine where it was written
}

}  // namespace
}  // namespace hocket::check

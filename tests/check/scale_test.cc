// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// ctest: serial
// The check takes time linear in the tasks: a stage of 100 layers and 64 micro-batches.
#include <gtest/gtest.h>

#include <ctime>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::check {
namespace {

/// Returns CPU seconds, the best of three runs.
double seconds_to_check(int32_t num_micro_batches) {
  parallel::Plan plan;
  plan.dp = 2;
  plan.num_micro_batches = num_micro_batches;
  const test::Case c = test::make_case(test::dense(100, false), plan);
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t start = std::clock();
    const Verdict verdict = check(c.program, c.graph);
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    EXPECT_TRUE(verdict.ok()) << to_text(verdict);
    if (i == 0) {
      std::cout << verdict.num_tasks << " tasks, " << verdict.num_buffers << " buffers\n";
    }
  }
  std::cout << "checked in " << best << " s\n";
  return best;
}

/// Four times the tasks take about four times the time; quadratic time would take sixteen.
TEST(Scale, TimeIsLinearInTheTasks) { EXPECT_LT(seconds_to_check(64), 9 * seconds_to_check(16)); }

}  // namespace
}  // namespace hocket::check

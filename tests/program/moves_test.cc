// SPDX-License-Identifier: Apache-2.0
// Names of the parameters that a communication moves.
#include "program/moves.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/check/check_util.h"

namespace hocket::program {
namespace {

/// With shards in groups of ranks, gradients go through two collectives: inside a group, and
/// between groups. Both name the parameters that the gradients belong to.
TEST(Moves, GradientsAreFollowedThroughSeveralCollectives) {
  parallel::Plan plan;
  plan.dp = 4;
  plan.shard.group = 2;
  plan.shard.params = plan.shard.grads = parallel::Shard::all;
  const check::test::Case c = check::test::make_case(check::test::dense(2, false), plan, 8, 0);
  const std::vector<std::string> moved = parameters_moved(c.program, 0);
  std::map<std::string, int> times;
  for (TaskId id = 0; id < moved.size(); ++id) {
    const Task& task = c.program.classes[0].tasks[id];
    const Kind& kind = c.program.kind(task);
    if (task.phase == Phase::grad && is_communication(kind) && kind.in[0].numel() > 1) {
      ++times[moved[id]];
    }
  }
  EXPECT_GT(times.size(), 10u);
  for (const auto& [parameter, count] : times) {
    EXPECT_EQ(count, 2) << "'" << parameter << "'";
  }
}

}  // namespace
}  // namespace hocket::program

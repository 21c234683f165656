// SPDX-License-Identifier: Apache-2.0
// The overlap pass: the order within a lane, and the computation beside the last message of a
// backward pass.
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::passes {
namespace {

/// Far more than tokens, so that the operands of an embedding's gradient are gathered, and not
/// reduced.
constexpr int64_t kLarge = 1 << 16;

using program::Lane;
using program::Phase;
using program::Program;
using program::Task;

check::test::Case lowered(const parallel::Plan& plan, const std::vector<std::string>& settings,
                          bool tied = false, int64_t vocabulary = 32) {
  check::test::Rewrites rewrites;
  rewrites.passes.insert(rewrites.passes.begin() + 3, "overlap");
  rewrites.settings = settings;
  models::ModelConfig model = check::test::dense(4, tied);
  model.vocab_size = vocabulary;
  return check::test::make_case(model, plan, 8, 0, check::test::Purpose::train, rewrites);
}

/// Products for gradients of weights in the list behind the last communication of the backward
/// pass of the micro-batch.
int64_t behind_last(const Program& program, program::ClassId cls, int32_t micro_batch) {
  const std::vector<Task>& tasks = program.classes[cls].tasks;
  const auto backward = [&](const Task& task) {
    return task.phase == Phase::backward && task.micro_batch == micro_batch;
  };
  const auto last = std::find_if(tasks.rbegin(), tasks.rend(), [&](const Task& task) {
    return backward(task) && task.lane != Lane::compute;
  });
  return std::count_if(tasks.rbegin(), last, [&](const Task& task) {
    return backward(task) && program.kind(task).op == "linear_dw";
  });
}

// A stage's message to the one before does not wait for products that only add to gradients.
TEST(Overlap, WeightGradientsOfTheLastLayerAreDelayed) {
  parallel::Plan plan;
  plan.pp = 2;
  plan.num_micro_batches = 3;
  const check::test::Case before = lowered(plan, {});
  const check::test::Case after = lowered(plan, {"delay_wgrad_compute=true"});
  const program::ClassId second = 1;
  for (int32_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
    EXPECT_EQ(behind_last(before.program, second, micro_batch), 0);
    EXPECT_GE(behind_last(after.program, second, micro_batch), 4);
  }
  const check::Verdict verdict = check::check(after.program, after.graph);
  EXPECT_TRUE(verdict.ok()) << to_text(verdict);
}

// The exchange of an embedding's gradient stays too; a reduction comes behind its product.
TEST(Overlap, DelayedGradientsAreStillSummed) {
  parallel::Plan plan;
  plan.dp = 2;
  for (const bool tied : {false, true}) {
    const check::test::Case c = lowered(plan, {"delay_wgrad_compute=true"}, tied, kLarge);
    const check::Verdict verdict = check::check(c.program, c.graph);
    EXPECT_TRUE(verdict.ok()) << to_text(verdict);
  }
}

// Compute waits for parameters: in a lane they go before sums that begin at the same place.
TEST(Overlap, ParametersGoBeforeSums) {
  parallel::Plan plan;
  plan.dp = 2;
  plan.shard.params = plan.shard.grads = parallel::Shard::all;
  const check::test::Case c = lowered(plan, {});
  const std::vector<Task>& tasks = c.program.classes[0].tasks;
  int gathers = 0;
  for (size_t i = 1; i < tasks.size(); ++i) {
    const bool gather =
        c.program.kind(tasks[i]).op == "all_gather" && tasks[i].phase == Phase::backward;
    gathers += gather ? 1 : 0;
    if (gather && c.program.kind(tasks[i - 1]).op == "reduce_scatter") {
      EXPECT_NE(tasks[i - 1].phase, Phase::grad) << "task " << i;
    }
  }
  EXPECT_GT(gathers, 0);
  EXPECT_TRUE(check::check(c.program, c.graph).ok());
}

// Reductions of gradients that are not delayed go before the exchange, for which the link would
// wait. Reductions that the exchange waits for go behind the products too.
TEST(Overlap, SumsOfOtherGradientsGoBeforeTheExchange) {
  parallel::Plan plan;
  plan.dp = 2;
  const check::test::Case c = lowered(plan, {"delay_wgrad_compute=true"}, false, kLarge);
  const std::vector<Task>& tasks = c.program.classes[0].tasks;
  const auto exchange = std::find_if(tasks.rbegin(), tasks.rend(), [&](const Task& task) {
    return task.phase == Phase::backward && task.lane != Lane::compute;
  });
  ASSERT_NE(exchange, tasks.rend());
  const auto sums = [&](auto begin, auto end) {
    return std::count_if(begin, end, [](const Task& task) {
      return task.phase == Phase::grad && task.layer == 0 && task.lane != Lane::compute;
    });
  };
  EXPECT_GE(sums(exchange, tasks.rend()), 1);
  EXPECT_GE(sums(tasks.rbegin(), exchange), 4);
}

// The squares of gradients are summed in the order in which the gradients come: the first does not
// wait for the last.
TEST(Overlap, SquaresOfGradientsAreSummedAsTheyArrive) {
  parallel::Plan plan;
  plan.dp = 2;
  const check::test::Case c = lowered(plan, {});
  const std::vector<Task>& tasks = c.program.classes[0].tasks;
  std::vector<size_t> order;  // by square: the place of the reduction that it reads
  for (const Task& square : tasks) {
    if (c.program.kind(square).op != "sumsq") continue;
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].phase == Phase::grad && tasks[i].out == square.in) {
        order.push_back(i);
      }
    }
  }
  ASSERT_GE(order.size(), 20u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_TRUE(check::check(c.program, c.graph).ok());
}

}  // namespace
}  // namespace hocket::passes

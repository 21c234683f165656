// SPDX-License-Identifier: Apache-2.0
// Predictions for unseen ops from timed ones, on machines with a known law.
#include "cost/learned.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace hocket::cost {
namespace {

/// Returns the time on a machine where smaller kernels reach a smaller fraction of their roofline,
/// by kind of kernel.
double truth(const Leaf& leaf) {
  const double at_best = leaf.cost_class == ops::CostClass::matmul ? 1.3 : 2.0;
  return 1e9 * leaf.roofline_s * at_best * std::pow(leaf.roofline_s / 1e-3, -0.2);
}

std::vector<TimedLeaf> tasks_of(int ops, int sizes, double noise, uint64_t seed) {
  Rng rng(seed);
  std::vector<TimedLeaf> list;
  for (int op = 0; op < ops; ++op) {
    for (int size = 0; size < sizes; ++size) {
      Leaf leaf;
      leaf.op = "op" + std::to_string(op);
      leaf.cost_class = op % 2 ? ops::CostClass::matmul : ops::CostClass::memory;
      leaf.bytes = std::exp(10 + 8 * rng.uniform());
      leaf.flops = leaf.bytes * (op % 2 ? 50 * (1 + rng.uniform()) : 0.5);
      leaf.roofline_s = std::max(leaf.bytes / 1e10, leaf.flops / 1e11);
      list.push_back({leaf, truth(leaf) * std::exp(noise * (rng.uniform() - 0.5))});
    }
  }
  return list;
}

TEST(Learned, PredictsUnseenOps) {
  const LearnedTimes learned(tasks_of(8, 6, 0.05, 1));
  EXPECT_TRUE(learned.useful());
  EXPECT_LT(learned.held_out(), 0.15);
  EXPECT_GT(learned.roofline_held_out(), 2 * learned.held_out());
  for (TimedLeaf& task : tasks_of(2, 10, 0, 2)) {
    task.leaf.op = "new";
    EXPECT_NEAR(learned.ns(task.leaf) / task.ns, 1, 0.3) << task.leaf.bytes;
  }
}

TEST(Learned, DoesNotDependOnTheOrderOfTasks) {
  std::vector<TimedLeaf> tasks = tasks_of(6, 4, 0.2, 3);
  const LearnedTimes one(tasks);
  const Leaf leaf = tasks.front().leaf;
  std::reverse(tasks.begin(), tasks.end());
  const LearnedTimes other(tasks);
  EXPECT_NEAR(one.ns(leaf) / other.ns(leaf), 1, 1e-9);
  EXPECT_NEAR(one.held_out(), other.held_out(), 1e-9);
}

TEST(Learned, NeedsEnoughTasksAndOps) {
  EXPECT_FALSE(LearnedTimes(tasks_of(3, 10, 0, 4)).useful());
  EXPECT_FALSE(LearnedTimes(tasks_of(5, 2, 0, 4)).useful());
  EXPECT_FALSE(LearnedTimes({}).useful());
}

TEST(Learned, NotUsefulWhereTheRooflineIsExact) {
  std::vector<TimedLeaf> tasks = tasks_of(6, 6, 0, 5);
  for (TimedLeaf& task : tasks) {
    task.ns = 1.5e9 * task.leaf.roofline_s;
  }
  const LearnedTimes learned(tasks);
  EXPECT_LT(learned.roofline_held_out(), 1e-9);
  EXPECT_FALSE(learned.useful());
}

}  // namespace
}  // namespace hocket::cost

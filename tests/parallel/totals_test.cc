// SPDX-License-Identifier: Apache-2.0
// Totals: a node of the step reads the sum over all micro-batches of a micro-batch's tensor, under
// every plan, whether or not other nodes read the tensor in its micro-batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "autodiff/autodiff.h"
#include "check/check.h"
#include "models/build.h"
#include "ops/build.h"
#include "ops/op.h"
#include "parallel/lowering/lower.h"
#include "program/finalize.h"
#include "tests/check/check_util.h"

namespace hocket::parallel {
namespace {

/// Returns a training that also reads the first output of every node of this op in its step.
graph::Graph with_totals(const models::ModelConfig& model, const std::string& op) {
  models::BuildOptions options;
  options.tokens = 32;
  options.sequence_length = 8;
  graph::Graph graph = models::build(model, options);
  std::vector<std::pair<graph::TensorId, int32_t>> totals;
  for (const graph::Node& node : graph.nodes) {
    if (node.op == op) {
      totals.emplace_back(node.out[0], node.layer);
    }
  }
  EXPECT_FALSE(totals.empty()) << op;
  autodiff::differentiate(graph);
  autodiff::append_optimizer(graph, {});
  for (const auto& [tensor, layer] : totals) {
    graph.outputs.push_back(ops::apply(graph, "sumsq", {}, {tensor},
                                       "sumsq." + graph.tensor(tensor).name, layer,
                                       graph::Phase::optimizer)[0]);
  }
  return graph;
}

Plan plan_of(int64_t pp, int64_t dp, int64_t tp, const std::string& schedule = "1f1b",
             int64_t chunks = 1) {
  Plan plan;
  plan.pp = pp;
  plan.dp = dp;
  plan.tp = tp;
  plan.pp_schedule = schedule;
  plan.pp_chunks = chunks;
  plan.micro_batch = 4 / dp;
  plan.num_micro_batches = 8;
  return plan;
}

TEST(Totals, AreThoseOfTheSingleDeviceStep) {
  const std::vector<Plan> plans = {plan_of(1, 1, 1),
                                   plan_of(1, 2, 1),
                                   plan_of(1, 1, 2),
                                   plan_of(2, 2, 1),
                                   plan_of(2, 1, 2),
                                   plan_of(2, 1, 1, "zb-h1"),
                                   plan_of(2, 1, 1, "dualpipe")};
  for (const auto& model : {check::test::dense(2, true), check::test::moe(2)}) {
    for (const char* op : {"rms_norm", "embedding"}) {
      const graph::Graph graph = with_totals(model, op);
      for (const Plan& plan : plans) {
        SCOPED_TRACE(fmt::format("{} pp {} dp {} tp {} {}", op, plan.pp, plan.dp, plan.tp,
                                 plan.pp_schedule));
        program::Program program = lower(graph, plan);
        program::finalize(program);
        const check::Verdict verdict = check::check(program, graph);
        EXPECT_TRUE(verdict.ok()) << check::to_text(verdict);
      }
    }
  }
}

/// A program is refused if its step takes the value of one micro-batch for the sum.
TEST(Totals, RefusedIfTheyMissAMicroBatch) {
  const graph::Graph graph = with_totals(check::test::dense(2, true), "embedding");
  program::Program program = lower(graph, plan_of(1, 1, 1));
  auto& tasks = program.classes[0].tasks;
  // The first micro-batch copies its value to the sum; the next one adds to it.
  const auto copy = std::find_if(tasks.begin(), tasks.end(), [&](const program::Task& task) {
    return program.kind(task).op == ops::of(ops::Meaning::identity).name;
  });
  ASSERT_NE(copy, tasks.end());
  const program::BufferId sum = copy->out[0];
  const auto adds = std::find_if(tasks.begin(), tasks.end(), [&](const program::Task& task) {
    return program.kind(task).op == ops::of(ops::Meaning::sum).name && task.out[0] == sum;
  });
  ASSERT_NE(adds, tasks.end());
  tasks.erase(adds);
  program::finalize(program);
  EXPECT_FALSE(check::check(program, graph).ok());
}

}  // namespace
}  // namespace hocket::parallel

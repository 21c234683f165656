// SPDX-License-Identifier: Apache-2.0
#include "diagnose/report_fill.h"

#include <gtest/gtest.h>

#include "program/finalize.h"
#include "trace/trace_builder.h"

namespace hocket::diagnose {
namespace {

using trace::Trace;
using trace::TraceEvent;

// Steps of 100, 300 and 200 ns on two ranks, after an event outside any step.
Trace three_steps() {
  Trace t;
  t.num_ranks = 2;
  t.steps = {4, 5, 6};
  const auto add = [&](int rank, int step, const char* kind, int64_t start, int64_t end) {
    TraceEvent e;
    e.rank = rank;
    e.step = step;
    e.kind = t.intern(kind);
    e.start_ns = start;
    e.end_ns = end;
    e.flops = 10;
    e.bytes = 6;
    t.events.push_back(e);
  };
  add(0, program::kNone, "load", 0, 1000);
  add(0, 4, "linear", 1000, 1080);
  add(1, 4, "linear", 1000, 1100);
  add(0, 5, "linear", 2000, 2300);
  add(1, 5, "attention", 2100, 2200);
  add(0, 6, "linear", 3000, 3200);
  add(1, 6, "linear", 3010, 3030);
  return t;
}

TEST(ReportFill, TakesMeansPerStepAndRank) {
  ReportData r;
  fill_measured(r, three_steps());
  EXPECT_EQ(r.kinds_steps, 3);
  EXPECT_DOUBLE_EQ(r.kinds_step_s, 200e-9);
  ASSERT_EQ(r.kinds.size(), 2u);
  EXPECT_EQ(r.kinds[0].kind, "linear");
  EXPECT_DOUBLE_EQ(r.kinds[0].calls, 5.0 / 6);
  EXPECT_DOUBLE_EQ(r.kinds[0].seconds, 700e-9 / 6);
  EXPECT_DOUBLE_EQ(r.kinds[0].flops, 50.0 / 6);
  EXPECT_DOUBLE_EQ(r.kinds[1].bytes, 1);
  // The step of median length, at time zero.
  EXPECT_EQ(r.step.steps, std::vector<int32_t>{6});
  ASSERT_EQ(r.step.events.size(), 2u);
  EXPECT_EQ(r.step.events[0].start_ns, 0);
  EXPECT_EQ(r.step.events[1].end_ns, 30);
}

TEST(ReportFill, PredictionIsAddedToTheMeasurement) {
  ReportData r;
  fill_measured(r, three_steps());
  Trace p;
  p.source = "simulation";
  p.num_ranks = 2;
  TraceEvent e;
  e.step = 0;
  e.kind = p.intern("linear");
  e.end_ns = 120;
  p.events.push_back(e);
  e.kind = p.intern("all_reduce");
  e.lane = 1;
  e.start_ns = 120;
  e.end_ns = 150;
  p.events.push_back(e);
  fill_predicted(r, p);  // one rank stands for both
  ASSERT_EQ(r.kinds.size(), 3u);
  EXPECT_DOUBLE_EQ(r.kinds[0].predicted_seconds, 120e-9);
  EXPECT_TRUE(std::isnan(r.kinds[1].predicted_seconds));
  EXPECT_EQ(r.kinds[2].kind, "all_reduce");
  EXPECT_EQ(r.kinds[2].lane, "intra");
  EXPECT_TRUE(std::isnan(r.kinds[2].seconds));
  // For a step that is only simulated, waiting is not part of a transfer's time.
  ReportData simulated;
  p.events[1].waited_ns = 20;
  fill_simulated(simulated, p, {});
  EXPECT_EQ(simulated.kinds[0].kind, "linear");
  EXPECT_DOUBLE_EQ(simulated.kinds[0].seconds, 120e-9);
  EXPECT_TRUE(std::isnan(simulated.kinds[0].waiting));
  EXPECT_DOUBLE_EQ(simulated.kinds[1].seconds, 10e-9);
  EXPECT_DOUBLE_EQ(simulated.kinds[1].waiting, 20e-9);
  // The first event stands for one rank, the second for three.
  ReportData weighted;
  p.num_ranks = 4;
  const std::vector<int32_t> ranks = {1, 3};
  fill_predicted(weighted, p, ranks);
  ASSERT_EQ(weighted.kinds.size(), 2u);
  EXPECT_EQ(weighted.kinds[0].kind, "all_reduce");
  EXPECT_DOUBLE_EQ(weighted.kinds[0].predicted_seconds, 90e-9 / 4);
  EXPECT_DOUBLE_EQ(weighted.kinds[1].predicted_seconds, 120e-9 / 4);
}

TEST(ReportFill, BlamesTheKindWithTheLargestDifference) {
  ReportData r;
  r.predicted_step_s = 1.0;
  r.kinds_step_s = 1.3;
  r.kinds = {{"linear", "compute", 1, 0.7, 0, 0, 0.5},
             {"attention", "compute", 1, 0.2, 0, 0, 0.3},
             {"adamw", "compute", 1, 0.25, 0, 0, 0.1},
             {"all_reduce", "inter", 1, 0.9, 0, 0, 0.1}};
  r.kinds_steps = 1;
  TraceEvent e;
  e.step = 27;
  r.step.events.push_back(e);
  EXPECT_EQ(blame(r), "mostly linear: 700 ms in step 27 (1.3 s), 500 ms predicted");
  r.kinds_step_s = 0.7;  // shorter than predicted, and only attention is
  EXPECT_EQ(blame(r),
            "550 ms outside of computation in step 27 (700 ms): communication and waiting");
  r.kinds_step_s = 2.0;  // computing explains a quarter
  r.kinds_steps = 3;
  EXPECT_EQ(blame(r),
            "750 ms outside of computation in 3 traced steps (2 s on average): communication and "
            "waiting");
  // The run's steps give the direction: those before `settled_step` do not count.
  r.kinds_steps = 1;
  r.settled_step = 2;
  for (const double seconds : {5.0, 1.2, 1.3, 1.25}) {
    TrainPoint point;
    point.step = std::ssize(r.metrics.train) + 1;
    point.step_s = seconds;
    r.metrics.train.push_back(point);
  }
  EXPECT_NE(blame(r).find("step 27 (2 s)"), std::string::npos);
  r.kinds_step_s = 0.9;
  EXPECT_EQ(blame(r), "nothing in the trace of step 27 (900 ms)");
  r.kinds_step_s = 1.01;
  EXPECT_EQ(blame(r), "nothing in the trace of step 27 (1.01 s)");
  r.metrics.train[2].step_s = r.metrics.train[1].step_s = 1.04;
  r.metrics.train[3].step_s = 0.98;
  EXPECT_EQ(blame(r), "");
  r.metrics.train.clear();
  r.kinds_step_s = 1.04;
  EXPECT_EQ(blame(r), "");
  r.kinds_step_s = kMissing;
  EXPECT_EQ(blame(r), "");
}

TEST(ReportFill, SimulationFillsTheKindsWithoutARun) {
  const Trace predicted = three_steps();
  ReportData r;
  r.predicted_step_s = 3e-7;
  fill_simulated(r, predicted, std::vector<int32_t>(predicted.events.size(), 1));
  EXPECT_TRUE(r.simulated);
  ASSERT_EQ(r.kinds.size(), 2u);
  EXPECT_EQ(r.kinds[0].kind, "linear");
  EXPECT_TRUE(std::isnan(r.kinds[0].predicted_seconds));
  EXPECT_EQ(r.kinds_step_s, 3e-7);
  EXPECT_FALSE(r.predicted.events.empty());
}

TEST(ReportFill, TracesWithoutStepsChangeNothing) {
  ReportData r;
  fill_measured(r, Trace());
  fill_predicted(r, Trace());
  EXPECT_TRUE(r.kinds.empty());
  EXPECT_TRUE(r.step.events.empty());
}

// Four tasks over four step buffers: a forward value kept for backward, a temporary, two gradients.
program::Program small_program() {
  using program::Buffer;
  using program::Phase;
  program::Program p;
  p.roles = {{"all", {{{"dp", 1}}}}};
  program::RankClass cls;
  const auto buffer = [&](program::BufferKind kind, int64_t n, const char* name) {
    Buffer b;
    b.kind = kind;
    b.type.dims = {n};
    b.name = name;
    cls.buffers.push_back(b);
    return cls.buffers.size() - 1;
  };
  const auto task = [&](const char* op, Phase phase, std::vector<program::BufferId> in,
                        std::vector<program::BufferId> out, int64_t workspace) {
    program::Kind k;
    k.op = op;
    k.workspace = workspace;
    program::Task t;
    t.kind = p.intern(k);
    t.phase = phase;
    t.in = std::move(in);
    t.out = std::move(out);
    t.layer = 1;
    t.micro_batch = 0;
    cls.tasks.push_back(t);
  };
  const auto w = buffer(program::BufferKind::persistent, 100, "w");
  const auto m = buffer(program::BufferKind::persistent, 200, "exp_avg.w");
  p.belongs = {{"exp_avg.w", "w"}};
  const auto x = buffer(program::BufferKind::input, 64, "x");
  const auto h = buffer(program::BufferKind::step, 64, "");
  const auto y = buffer(program::BufferKind::step, 64, "");
  const auto dy = buffer(program::BufferKind::step, 64, "");
  const auto dw = buffer(program::BufferKind::step, 100, "");
  task("linear", Phase::forward, {x, w}, {h}, 0);
  task("swiglu", Phase::forward, {h}, {y}, 128);
  task("loss", Phase::forward, {y}, {dy}, 0);
  task("linear_dw", Phase::backward, {dy, h}, {dw}, 0);
  task("adamw", Phase::optimizer, {dw, w, m}, {w, m}, 0);
  p.classes.push_back(cls);
  program::finalize(p);
  return p;
}

TEST(ReportFill, TakesTheMemoryPlanFromTheProgram) {
  const program::Program p = small_program();
  const MemoryPlan plan = memory_plan_of(p, 0);
  EXPECT_TRUE(plan.in_tasks);
  EXPECT_EQ(plan.planned, program::memory_of(p)[0]);
  const std::vector<std::pair<std::string, int64_t>> persistent = {{"parameters", 4096},
                                                                   {"optimizer state", 4096}};
  EXPECT_EQ(plan.persistent, persistent);
  std::map<std::string, const MemoryBlock*> by_category;
  for (const MemoryBlock& b : plan.blocks) {
    EXPECT_LE(b.offset + b.bytes, plan.planned.step_buffers);
    by_category[b.category] = &b;
  }
  ASSERT_EQ(plan.blocks.size(), 5u);
  const MemoryBlock& kept = plan.blocks[0];
  EXPECT_EQ(kept.category, "kept for backward");
  EXPECT_EQ(kept.name, "output of linear, L1, micro-batch 0");
  EXPECT_EQ(kept.begin, 0);
  EXPECT_EQ(kept.end, 4);
  EXPECT_EQ(by_category.at("forward only")->name, "output of swiglu, L1, micro-batch 0");
  EXPECT_EQ(by_category.at("parameter gradient")->end, 5);
  EXPECT_EQ(by_category.at("workspace")->bytes, 128);
  EXPECT_EQ(by_category.at("workspace")->begin, 1);
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {  // never at the same time in the same place
      const MemoryBlock &a = plan.blocks[i], &b = plan.blocks[j];
      const bool together = a.begin < b.end && b.begin < a.end;
      const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      EXPECT_FALSE(together && overlap) << a.name << " and " << b.name;
    }
  }

  trace::TraceBuilder builder(p, "t", "run");
  const std::vector<int64_t> start = {0, 1000, 2000, 3000, 4000},
                             end = {900, 1900, 2900, 3900, 4900};
  builder.add_step(0, 7, start, end);
  const Trace trace = builder.take();
  const MemoryPlan timed = memory_plan_of(p, 0, &trace);
  EXPECT_FALSE(timed.in_tasks);
  EXPECT_DOUBLE_EQ(timed.blocks[0].end, 3900e-9);
}

}  // namespace
}  // namespace hocket::diagnose

// SPDX-License-Identifier: Apache-2.0
// Simulation of lowered programs: one rank per class equals all ranks, the program's text predicts
// the same as the program, every mesh axis appears in the right part of the breakdown.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <string>

#include "autodiff/autodiff.h"
#include "cost/flops.h"
#include "models/build.h"
#include "parallel/lowering/lower.h"
#include "program/finalize.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"
#include "sim/simulator.h"
#include "tests/check/check_util.h"
#include "tests/cluster_util.h"

namespace hocket::sim {
namespace {

using cost::CostModel;

const char* kMoe = R"({
  "model_type": "qwen3_moe", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 4,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64,
  "moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2,
  "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "norm_topk_prob": true,
  "tie_word_embeddings": true
})";

struct Case {
  Program program;
  double flops;
};

Case lowered(const parallel::Plan& plan) {
  const models::ModelConfig config = models::parse_config(kMoe, "test");
  models::BuildOptions o;
  o.sequence_length = 16;
  o.tokens = 16 * plan.micro_batch * plan.dp;
  o.num_micro_batches = plan.num_micro_batches;
  graph::Graph g = models::build(config, o);
  const double flops = cost::model_flops(g).training() * double(plan.num_micro_batches);
  autodiff::differentiate(g);
  autodiff::append_optimizer(g, {});
  Case c{parallel::lower(g, plan), flops};
  program::finalize(c.program);
  return c;
}

cost::Cluster cluster(int64_t nodes, int64_t per_node) {
  cost::Cluster c = test::cluster_of(nodes, per_node);
  c.links.intra = test::link_of(1e-6, 10e9);
  c.links.inter = test::link_of(5e-6, 1e9);
  return c;
}

parallel::Plan plan(int64_t pp, int64_t dp, int64_t ep, int64_t per_node = 0) {
  parallel::Plan p;
  p.pp = pp;
  p.dp = dp;
  p.ep = ep;
  p.num_micro_batches = 4;
  p.ranks_per_node = per_node;
  return p;
}

parallel::Plan interleaved(int64_t pp, int64_t chunks, int64_t dp, int64_t ep) {
  parallel::Plan p = plan(pp, dp, ep);
  p.pp_schedule = "interleaved";
  p.pp_chunks = chunks;
  return p;
}

TEST(SimulateLowered, OneRankPerClassEqualsAllRanks) {
  for (const auto& p :
       {plan(1, 1, 1), plan(2, 1, 1), plan(1, 4, 1), plan(1, 4, 2), plan(2, 4, 4), plan(4, 2, 2),
        plan(2, 4, 2, 4), interleaved(2, 2, 2, 2), interleaved(1, 4, 2, 1)}) {
    SCOPED_TRACE("pp " + std::to_string(p.pp) + " dp " + std::to_string(p.dp) + " ep " +
                 std::to_string(p.ep));
    const Case c = lowered(p);
    const CostModel costs(p.ranks_per_node ? cluster(p.world() / p.ranks_per_node, p.ranks_per_node)
                                           : cluster(1, p.world()),
                          std::nullopt, 1);
    SimOptions o;
    o.model_flops = c.flops;
    const SimReport one = simulate(c.program, costs, o);
    o.all_ranks = true;
    const SimReport all = simulate(c.program, costs, o);
    EXPECT_EQ(one.replayed_ranks, p.pp);
    EXPECT_EQ(all.replayed_ranks, p.world());
    EXPECT_EQ(one.step_ns, all.step_ns);
    EXPECT_EQ(one.mfu, all.mfu);
    EXPECT_GT(one.mfu, 0);
    EXPECT_LT(one.mfu, 1);
    EXPECT_NEAR(one.provenance.analytic, 1, 1e-12);
    for (const RankReport& r : all.time) {
      for (const RankReport& rep : one.time) {
        if (rep.cls == r.cls) {
          EXPECT_EQ(r.time.compute_ns, rep.time.compute_ns);
          EXPECT_EQ(r.time.exposed_ns, rep.time.exposed_ns);
          EXPECT_EQ(r.time.bubble_ns, rep.time.bubble_ns);
          EXPECT_EQ(r.time.idle_ns, rep.time.idle_ns);
        }
      }
    }
    // The printed program predicts the same.
    const Program parsed = program::parse_program(program::print(c.program));
    EXPECT_EQ(to_json(parsed, simulate(parsed, costs, o)), to_json(c.program, all));
  }
}

TEST(SimulateLowered, InterleavedStagesShrinkTheBubble) {
  // Two ranks of two stages do the work of two ranks of one stage, with half of the bubble, if
  // transfers cost next to nothing.
  cost::Cluster fast = cluster(1, 2);
  fast.links.intra = test::link_of(1e-12, 1e15);
  const CostModel costs(fast, std::nullopt, 1);
  const SimReport one = simulate(lowered(plan(2, 1, 1)).program, costs, {});
  const SimReport two = simulate(lowered(interleaved(2, 2, 1, 1)).program, costs, {});
  EXPECT_EQ(one.stages, 2);
  EXPECT_EQ(two.stages, 4);
  EXPECT_LT(two.step_ns, one.step_ns);
  EXPECT_NE(to_json(lowered(interleaved(2, 2, 1, 1)).program, two).find("\"stages\": [\n"),
            std::string::npos);
}

TEST(SimulateLowered, SplittingRankClassesKeepsTheTime) {
  int cut = 0;
  for (const auto& p :
       {plan(2, 4, 2), plan(1, 4, 4), plan(4, 2, 1), plan(2, 4, 2, 4), interleaved(2, 2, 2, 2)}) {
    const Case c = lowered(p);
    const CostModel costs(p.ranks_per_node ? cluster(p.world() / p.ranks_per_node, p.ranks_per_node)
                                           : cluster(1, p.world()),
                          std::nullopt, 1);
    const SimReport whole = simulate(c.program, costs, {});
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      std::mt19937_64 rng(seed);
      Program program = c.program;
      cut += check::test::split_classes(program, rng);
      const SimReport pieces = simulate(program, costs, {});
      EXPECT_EQ(pieces.step_ns, whole.step_ns) << p.pp << " " << p.dp << " " << seed;
      EXPECT_EQ(pieces.tasks, whole.tasks);
      SimOptions all;
      all.all_ranks = true;
      EXPECT_EQ(simulate(program, costs, all).step_ns, whole.step_ns);
      EXPECT_LE(pieces.replayed_ranks, p.world());
    }
  }
  EXPECT_GT(cut, 20);
}

TEST(SimulateLowered, MeshAxesAppearInTheBreakdown) {
  const CostModel one(cluster(1, 1), std::nullopt, 1);
  const SimReport alone = simulate(lowered(plan(1, 1, 1)).program, one, {});
  EXPECT_EQ(alone.time[0].time.exposed_ns, 0);
  EXPECT_EQ(alone.time[0].time.idle_ns, 0);
  EXPECT_EQ(alone.time[0].time.compute_ns, alone.step_ns);

  const SimReport piped =
      simulate(lowered(plan(2, 1, 1)).program, CostModel(cluster(1, 2), std::nullopt, 1), {});
  EXPECT_GT(piped.time[0].time.bubble_ns, 0);
  EXPECT_EQ(piped.time[0].time.idle_ns, 0);
  EXPECT_LT(piped.step_ns, alone.step_ns);

  const SimReport ep =
      simulate(lowered(plan(1, 2, 2)).program, CostModel(cluster(1, 2), std::nullopt, 1), {});
  EXPECT_GT(ep.time[0].time.exposed_ns, 0);
}

TEST(SimulateLowered, TraceHasOneEventPerTask) {
  const Case c = lowered(plan(2, 2, 2));
  Replay replay;
  SimOptions o;
  o.all_ranks = true;
  const SimReport r = simulate(c.program, CostModel(cluster(1, 4), std::nullopt, 1), o, &replay);
  const trace::Trace t = to_trace(c.program, replay);
  EXPECT_EQ(int64_t(t.events.size()), r.tasks);
  int64_t peak = 0;
  for (const auto& m : t.memory) {
    peak = std::max(peak, m.bytes);
  }
  EXPECT_GT(peak, 0);
  EXPECT_LE(peak, std::max(r.memory[0].step_buffers, r.memory[1].step_buffers));
}

TEST(SimulateLowered, TraceHasWaitingTimesAndMovedParameters) {
  const Case c = lowered(plan(2, 2, 2));
  Replay replay;
  SimOptions o;
  o.all_ranks = true;
  const SimReport r = simulate(c.program, CostModel(cluster(1, 4), std::nullopt, 1), o, &replay);
  const trace::Trace t = to_trace(c.program, replay);
  std::vector<std::array<int64_t, program::kNumLanes>> busy(4);
  std::set<std::string> reduced;
  int64_t waited = 0;
  for (const trace::TraceEvent& event : t.events) {
    busy[static_cast<size_t>(event.rank)][event.lane] +=
        event.end_ns - event.start_ns - event.waited_ns;
    waited += event.waited_ns;
    const bool collective = event.group != program::kNone;
    EXPECT_EQ(event.group_ranks, collective ? 2 : 0) << t.text(event.kind);
    if (event.lane == 0 || t.text(event.phase) == "forward" || t.text(event.phase) == "backward") {
      EXPECT_EQ(t.text(event.moves), "");
    } else if (event.bytes > 500) {  // no norms
      reduced.insert(t.text(event.moves));
    }
  }
  EXPECT_GT(waited, 0);
  for (const RankReport& rank : r.time) {
    EXPECT_EQ(busy[static_cast<size_t>(rank.rank)], rank.time.busy_ns) << rank.rank;
  }
  for (const std::string& names : reduced) {
    EXPECT_TRUE(names.find(".weight") != names.npos) << names;
  }
  EXPECT_GT(reduced.size(), 2u);
}

}  // namespace
}  // namespace hocket::sim

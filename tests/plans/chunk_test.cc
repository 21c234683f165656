// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// plan.moe_chunks: the experts take the tokens in pieces. Under any plan, the program is proven,
// gives the result of one rank that takes all tokens at once, and can be simulated.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "cost/cost_model.h"
#include "parallel/lowering/stamp.h"
#include "parallel/lowering/template.h"
#include "passes/pass.h"
#include "plan_util.h"
#include "program/finalize.h"
#include "sim/simulator.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::chunk_test {
namespace {

/// Two layers of experts; a rank has 12 tokens of a micro-batch.
Case experts(const std::string& plan, int64_t chunks, int64_t num_experts = 4) {
  Case c;
  c.seed = 7;
  c.name = fmt::format("{} in {} chunks", plan, chunks);
  c.text = fmt::format(
      "model:\n  dtype: f64\n  config: {{model_type: qwen3_moe, vocab_size: 23, hidden_size: 8, "
      "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
      "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
      "false, "
      "max_position_embeddings: 64, hidden_act: silu, num_experts: {}, num_experts_per_tok: 2, "
      "moe_intermediate_size: 3, norm_topk_prob: true, router_aux_loss_coef: 0.05, "
      "decoder_sparse_step: 1, mlp_only_layers: []}}\n"
      "train: {{seq_len: 6, global_batch: 16, warmup_steps: 0, lr: 0.01}}\n"
      "plan: {{{}, micro_batch: 2, moe_chunks: {}, threads_per_rank: 1, timeout_s: 60}}\n",
      num_experts, plan, chunks);
  return c;
}

engine::Compiled compiled(const Case& c) {
  return engine::compile(engine::parse_run(c.text, c.name, {}));
}

std::string split_backward() {
  const std::string path = ::testing::TempDir() + "chunk_zero_bubble.csv";
  std::ofstream(path) << "0F0,0F1,0I0,0F2,0I1,0F3,0W0,0I2,0W1,0I3,0W2,0W3\n"
                         "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3\n";
  return path;
}

struct Shape {
  std::string plan;
  int64_t num_experts = 4;
};
std::vector<Shape> shapes() {
  return {{"dp: 1"},
          {"dp: 2, ep: 2"},
          {"dp: 4, ep: 2"},
          {"dp: 2, ep: 2", 7},
          {"dp: 4, ep: 4, recompute: full"},
          {"dp: 4, ep: 4, ep_inner: 2"},
          {"dp: 2, ep: 2, recompute: selective"},
          {"pp: 2, dp: 2, ep: 2"},
          {"pp: 2, dp: 2, ep: 2, pp_schedule: " + split_backward()}};
}

/// Expects that the program is proven, and equal to one rank that has all tokens at once.
void expect_equal(const Case& c, const Outcome& one) {
  const engine::Compiled made = compiled(c);
  const check::Verdict verdict = check::check(made.program, made.reference);
  ASSERT_TRUE(verdict.ok()) << to_text(verdict);
  Outcome many;
  ASSERT_NO_THROW(many = train(c, {.steps = 2, .poison = true}));
  EXPECT_EQ(difference(many, one), "");
}

int64_t count(const program::Program& program, const std::string& op) {
  int64_t n = 0;
  for (const program::RankClass& cls : program.classes) {
    n += std::count_if(cls.tasks.begin(), cls.tasks.end(),
                       [&](const program::Task& task) { return program.kind(task).op == op; });
  }
  return n;
}

TEST(ChunkPass, EqualsOneRankInAnyNumberOfChunks) {
  for (const Shape& shape : shapes()) {
    const Outcome one =
        train(experts(shape.plan, 1, shape.num_experts), {.on_one_rank = true, .steps = 2});
    const program::Program whole = compiled(experts(shape.plan, 1, shape.num_experts)).program;
    for (const int64_t chunks : {1, 2, 3, 4}) {
      const Case c = experts(shape.plan, chunks, shape.num_experts);
      SCOPED_TRACE(c.name);
      const engine::Compiled made = compiled(c);
      for (const char* op : {"dispatch", "all_to_all", "grouped_linear", "grouped_linear_dw",
                             "combine", "dispatch_bwd"}) {
        EXPECT_EQ(count(made.program, op), chunks * count(whole, op)) << op;
      }
      expect_equal(c, one);
      if (HasFailure()) return;
    }
  }
}

/// Rows of the forward pass are regrouped into the pieces of the backward pass.
TEST(ChunkPass, BackwardMayHaveAnotherNumberOfChunks) {
  for (const Shape& shape : shapes()) {
    // RefusesPlansThatItCannotCut tests plans with ep_inner.
    if (shape.plan.find("ep_inner") != std::string::npos) continue;
    const Outcome one =
        train(experts(shape.plan, 1, shape.num_experts), {.on_one_rank = true, .steps = 2});
    const program::Program whole = compiled(experts(shape.plan, 1, shape.num_experts)).program;
    for (const auto& [forward, backward] :
         {std::pair{3, 2}, std::pair{1, 3}, std::pair{2, 1}, std::pair{3, 4}}) {
      const Case c = experts(shape.plan + fmt::format(", moe_chunks_backward: {}", backward),
                             forward, shape.num_experts);
      SCOPED_TRACE(c.name);
      const program::Program program = compiled(c).program;
      EXPECT_EQ(count(program, "dispatch_bwd"), backward * count(whole, "dispatch_bwd"));
      // Nothing of the forward pass is left where all of it is repeated.
      const bool repeated = shape.plan.find("full") != std::string::npos;
      EXPECT_EQ(count(program, "regroup") > 0, !repeated);
      expect_equal(c, one);
      if (HasFailure()) return;
    }
  }
}

/// HOCKET_MUTANTS=200 HOCKET_SEED=S: how many mutants of each shape, and which.
TEST(ChunkPass, MutantsAreRefusedOrEqual) {
  const std::vector<Shape> all = shapes();
  const uint64_t mutants = from_environment("HOCKET_MUTANTS", fewer(30));
  const uint64_t seed = from_environment("HOCKET_SEED", 1);
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_MUTANTS=" << mutants << "\n";
  for (size_t shape = 0; shape < all.size(); ++shape) {
    const Case c =
        experts(all[shape].plan, 2 + static_cast<int64_t>(shape) % 3, all[shape].num_experts);
    const MutantCounts counts = try_mutants(c, mutants, seed * 100 + shape, "view");
    std::cout << c.name << ": " << counts.refused << " refused, " << counts.equal
              << " accepted and equal to one rank\n";
    EXPECT_EQ(counts.far, 0) << counts.far_first;
    EXPECT_GE(2 * counts.refused, mutants);
    EXPECT_GE(counts.refused + counts.equal, mutants * 7 / 8);
  }
}

/// A layer in a graph of its own. Its pieces add to existing gradients of tokens and weights.
/// Gradients of weights are no sums over micro-batches.
ProgramBuilder layer(int64_t tokens) {
  ProgramBuilder w({{"edp", 1}});
  constexpr int64_t kExperts = 4, kWidth = 3;
  const graph::Attrs routing{{"num_experts", kExperts}};
  const graph::Init init{graph::Init::Kind::normal, 1.0};
  const TensorId x = w.input("x", f64({tokens, kWidth}), false);
  const TensorId chosen = w.input("experts", i32({tokens, 2}), false);
  const TensorId weights = w.input("weights", f64({tokens, 2}), false);
  const TensorId dy = w.input("dy", f64({tokens, kWidth}), false);
  const TensorId matrix = w.graph.param("W", f64({kExperts, kWidth, kWidth}), 0, init, true);
  const auto add_to = [&](TensorId sum) {
    w.graph.nodes.back().in.push_back(sum);
    w.graph.nodes.back().accumulate.add(0);
  };
  const auto plan = w.apply("plan", "route_plan", routing, {chosen});
  const TensorId rows = w.apply("rows", "dispatch", routing, {x, plan[1]})[0];
  const TensorId made = w.apply("made", "grouped_linear", {}, {rows, matrix, plan[0]})[0];
  const TensorId y = w.apply("y", "combine", {}, {made, weights, plan[1]})[0];
  const auto back = w.apply("d_made", "combine_bwd", {}, {dy, made, weights, plan[1]});
  const TensorId d_rows = w.apply("d_rows", "grouped_linear_dx", {}, {back[0], matrix, plan[0]})[0];
  const TensorId once = w.apply("once", "grouped_linear_dw", {}, {back[0], rows, plan[0]})[0];
  const TensorId d_matrix = w.apply("dW", "grouped_linear_dw", {}, {back[0], rows, plan[0]})[0];
  add_to(once);
  const TensorId before = w.apply("before", "add", {}, {dy, x})[0];
  const TensorId dx = w.apply("dx", "dispatch_bwd", {}, {d_rows, plan[1]})[0];
  add_to(before);
  const TensorId after = w.apply("after", "add", {}, {dx, dy})[0];
  for (const TensorId id : {y, back[1], d_matrix, dx, after}) {
    w.result(id);
  }
  return w;
}

TEST(ChunkPass, AddsToExistingGradients) {
  for (const int64_t ep : {1, 2, 4}) {
    for (const int64_t chunks : {1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("ep {}, {} chunks", ep, chunks));
      const ProgramBuilder w = layer(48);
      parallel::Plan plan;
      plan.dp = 4;
      plan.ep = ep;
      parallel::Templates templates = parallel::make_templates(w.graph, plan);
      passes::PassRunner({"chunk"}, {}, passes::PassOptions({fmt::format("moe_chunks={}", chunks)}))
          .run(templates);
      program::Program program = parallel::stamp(templates);
      program::finalize(program);
      EXPECT_EQ(count(program, "grouped_linear"), chunks);
      const check::Verdict verdict = check::check(program, w.graph);
      ASSERT_TRUE(verdict.ok()) << to_text(verdict);
      EXPECT_EQ(difference(run(w, program, 3), run_alone(w, 3)), "");
    }
  }
}

/// With exchanges and experts of about the same time, chunks hide a part of each behind the other.
TEST(ChunkPass, HidesExchangesBehindExperts) {
  const auto predicted = [](int64_t chunks) {
    const std::string text = fmt::format(
        "model: {{config: {{model_type: qwen3_moe, vocab_size: 512, hidden_size: 1024, "
        "num_hidden_layers: 2, num_attention_heads: 8, num_key_value_heads: 8, head_dim: 128, "
        "intermediate_size: 1024, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, "
        "tie_word_embeddings: false, max_position_embeddings: 2048, hidden_act: silu, "
        "num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 1024, "
        "norm_topk_prob: true, router_aux_loss_coef: 0.01, decoder_sparse_step: 1, "
        "mlp_only_layers: []}}}}\n"
        "train: {{seq_len: 2048, global_batch: 4}}\n"
        "plan: {{dp: 4, ep: 4, micro_batch: 1, moe_chunks: {}}}\n",
        chunks);
    const program::Program program = compiled({text, "wide", 1}).program;
    cost::Cluster cluster = one_node(program.num_ranks());
    cluster.links.intra.bandwidth.value = 1e9;
    const cost::CostModel costs(cluster, std::nullopt, 1);
    return sim::simulate(program, costs, {}).step_ns;
  };
  const auto whole = static_cast<double>(predicted(1));
  EXPECT_LT(static_cast<double>(predicted(2)), 0.9 * whole);
  EXPECT_LT(static_cast<double>(predicted(4)), 0.85 * whole);
}

std::string refused(const Case& c) {
  try {
    compiled(c);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChunkPass, RefusesPlansThatItCannotCut) {
  const std::string five = refused(experts("dp: 2, ep: 2", 5));
  EXPECT_NE(five.find("plan.moe_chunks is 5"), std::string::npos) << five;
  EXPECT_NE(five.find("12 tokens"), std::string::npos) << five;
  const std::string seven = refused(experts("dp: 2, ep: 2, moe_chunks_backward: 7", 2));
  EXPECT_NE(seven.find("plan.moe_chunks_backward is 7"), std::string::npos) << seven;
  const std::string steps =
      refused(experts("dp: 4, ep: 4, ep_inner: 2, moe_chunks_backward: 3", 2));
  EXPECT_NE(steps.find("in 2 steps; expected equal numbers of pieces backward"), std::string::npos)
      << steps;
  EXPECT_NE(refused(experts("dp: 2", 0)), "");
  const std::string again = refused(experts("dp: 2, passes: [chunk, chunk]", 2));
  EXPECT_NE(again.find("expected the pass once"), std::string::npos) << again;
}

/// Generation takes any number of tokens: it has no pieces, and is not refused.
TEST(ChunkPass, LeavesGenerationAlone) {
  const auto program = [&](int64_t chunks) {
    const Case c = experts("dp: 1", chunks);
    engine::Compiled made = engine::compile(
        engine::generation(engine::parse_run(c.text, c.name, {}), 8, {.longest = 32}));
    made.program.config.clear();
    return program::print(made.program);
  };
  EXPECT_EQ(program(4), program(1));
}

}  // namespace
}  // namespace hocket::test::chunk_test

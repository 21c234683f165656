// SPDX-License-Identifier: Apache-2.0
// The axes cp and tp: what of a model they split by default, what pins change, what crosses ranks,
// and what is refused. That the programs compute what one rank does: tests/plans.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "check/check.h"
#include "engine/compile.h"

namespace hocket::parallel {
namespace {

struct Shape {
  int64_t kv_heads = 2, head_dim = 4, vocab = 24, seq_len = 8;
  const char* recompute = "none";
};

engine::Run run_of(const std::string& plan, const Shape& shape = {}) {
  return engine::parse_run(
      fmt::format("model: {{config: {{model_type: llama, vocab_size: {}, hidden_size: 8, "
                  "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: {}, "
                  "head_dim: {}, intermediate_size: 12, tie_word_embeddings: false}}}}\n"
                  "train: {{global_batch: 4, seq_len: {}}}\n"
                  "plan: {{{}, recompute: {}, threads_per_rank: 1}}\n",
                  shape.vocab, shape.kv_heads, shape.head_dim, shape.seq_len, plan,
                  shape.recompute),
      "axes", {});
}

program::Program proven(const std::string& plan, const Shape& shape = {}) {
  engine::Compiled made = engine::compile(run_of(plan, shape));
  const check::Verdict verdict = check::check(made.program, made.reference);
  EXPECT_TRUE(verdict.ok()) << plan << "\n" << to_text(verdict);
  return std::move(made.program);
}

/// Tasks of an op in the first class.
int64_t count(const program::Program& program, const std::string& op) {
  const auto& tasks = program.classes[program::ClassId(0)].tasks;
  return std::count_if(tasks.begin(), tasks.end(),
                       [&](const program::Task& task) { return program.kind(task).op == op; });
}

/// Layouts of the persistent tensors of the first class, by name.
std::map<std::string, std::string> stored(const program::Program& program) {
  std::map<std::string, std::string> layouts;
  for (const program::Buffer& buffer : program.classes[program::ClassId(0)].buffers) {
    if (buffer.kind == program::BufferKind::persistent) {
      layouts[buffer.name] = to_string(buffer.layout, program.roles[0].mesh);
    }
  }
  return layouts;
}

std::string refusal(const std::string& plan, const Shape& shape = {}) {
  try {
    engine::compile(run_of(plan, shape));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Axes, AreInTheMeshOnlyWhereTheyAreSeveralRanks) {
  EXPECT_EQ(to_string(run_of("dp: 2").plan.mesh()), "pp:1 edp:2 ep:1");
  EXPECT_EQ(to_string(run_of("tp: 2").plan.mesh()), "pp:1 edp:1 ep:1 tp:2");
  const Plan plan = run_of("pp: 2, dp: 2, cp: 2, tp: 2").plan;
  EXPECT_EQ(to_string(plan.mesh()), "pp:2 edp:2 ep:1 cp:2 tp:2");
  EXPECT_EQ(plan.world(), 16);
  // A group that holds a part of edp makes two axes of it; others lie along the axes that there
  // are.
  EXPECT_EQ(to_string(run_of("dp: 4, shard: {group: 2}").plan.mesh()),
            "pp:1 edp:2 edp_inner:2 ep:1");
  EXPECT_EQ(to_string(run_of("dp: 4, cp: 2, shard: {group: 4}").plan.mesh()),
            "pp:1 edp:2 edp_inner:2 ep:1 cp:2");
  EXPECT_EQ(to_string(run_of("dp: 4, cp: 2, shard: {group: 2}").plan.mesh()),
            "pp:1 edp:4 ep:1 cp:2");
  EXPECT_EQ(to_string(run_of("dp: 4, shard: {group: 4}").plan.mesh()), "pp:1 edp:4 ep:1");
}

TEST(Axes, KeysAreGatheredWhereASequenceIsCut) {
  // Two layers, of each keys and values once, and their gradients.
  const program::Program cut = proven("cp: 2, micro_batch: 1, dp: 4");
  EXPECT_EQ(count(cut, "all_gather"), 4);
  EXPECT_EQ(count(cut, "reduce_scatter"), 4);
  // Whole sequences in every block, and two blocks in every sequence of two.
  EXPECT_EQ(count(proven("cp: 2, micro_batch: 2, dp: 2"), "all_gather"), 0);
  EXPECT_EQ(count(proven("cp: 4, micro_batch: 2, dp: 2"), "all_gather"), 4);
}

/// Gradients of keys and values are larger than what is made of them: still they are added up
/// first.
TEST(Axes, WhatIsPartialOverQueriesIsSummedAtOnce) {
  for (const char* recompute : {"none", "selective", "full"}) {
    for (const char* plan :
         {"cp: 2, micro_batch: 1, dp: 4", "cp: 4, tp: 2, micro_batch: 1, dp: 1"}) {
      proven(plan, {.head_dim = 8, .recompute = recompute});
    }
  }
}

TEST(Axes, TensorParallelismSplitsWhatOpsAllow) {
  const program::Program program = proven("tp: 2, micro_batch: 4");
  const std::map<std::string, std::string> layouts = stored(program);
  EXPECT_EQ(layouts.at("model.embed_tokens.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("lm_head.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("exp_avg.lm_head.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.k_proj.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.o_proj.weight"), "tp:S1");
  EXPECT_EQ(layouts.at("model.layers.0.mlp.gate_up_proj.weight"), "tp:S1");
  EXPECT_EQ(layouts.at("model.layers.0.mlp.down_proj.weight"), "tp:S1");
  EXPECT_EQ(layouts.at("model.norm.weight"), "B");
  EXPECT_EQ(count(program, "linear_cross_entropy"), 0);
  EXPECT_EQ(count(program, "rowmax"), 1);
  EXPECT_EQ(count(program, "all_gather"), 0);
  // One key head is not two: heads stay whole, the rest does not.
  const std::map<std::string, std::string> one_head = stored(proven("tp: 2", {.kv_heads = 1}));
  EXPECT_EQ(one_head.at("model.layers.1.self_attn.q_proj.weight"), "B");
  EXPECT_EQ(one_head.at("model.layers.0.mlp.down_proj.weight"), "tp:S1");
}

TEST(Axes, PinsHaveTheLastWord) {
  const std::map<std::string, std::string> layouts = stored(
      proven("tp: 2, layouts: ['*_proj.weight B', '*.down_proj.weight tp:S1', lm_head.weight B]"));
  EXPECT_EQ(layouts.at("model.embed_tokens.weight"), "tp:S0");
  EXPECT_EQ(layouts.at("lm_head.weight"), "B");
  EXPECT_EQ(layouts.at("exp_avg_sq.lm_head.weight"), "B");
  EXPECT_EQ(layouts.at("model.layers.1.self_attn.q_proj.weight"), "B");
  EXPECT_EQ(layouts.at("model.layers.1.mlp.gate_up_proj.weight"), "B");
  EXPECT_EQ(layouts.at("model.layers.1.mlp.down_proj.weight"), "tp:S1");
  // An axis of one rank splits nothing.
  EXPECT_EQ(stored(proven("dp: 2, layouts: [lm_head.weight tp:S0]")).at("lm_head.weight"), "B");
}

TEST(Axes, WhatCannotBeIsSaid) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"cp: 3, micro_batch: 1", "plan.cp is 3; expected a divisor of the 8 tokens"},
      {"tp: 5", "plan.tp is 5; expected a divisor of the 24 of dim 0 of model.embed_tokens.weight"},
      {"tp: 2, layouts: [lm_head.weight]", "expected PATTERN LAYOUT"},
      {"tp: 2, layouts: [head.weight tp:S0]", "no parameter matches 'head.weight'"},
      {"tp: 2, layouts: [lm_head.weight tp:S2]", "'lm_head.weight tp:S2' cannot be"},
      {"tp: 5, layouts: ['*.weight B', model.norm.weight tp:S0]",
       "'model.norm.weight tp:S0' cannot be"},
      {"tp: 2, layouts: [lm_head.weight pp:S0]",
       "with one of edp, edp_inner, ep, ep_inner, cp, tp, or B"},
      {"tp: 2, layouts: [lm_head.weight tp:P]",
       "with one of edp, edp_inner, ep, ep_inner, cp, tp, or B"},
      {"tp: 2, layouts: [lm_head.weight te:S0]", "axis of the mesh"},
  };
  for (const auto& [plan, what] : cases) {
    EXPECT_NE(refusal(plan).find(what), std::string::npos) << plan << ": " << refusal(plan);
  }
}

/// The head is but a product where logits are asked for; still programs of a run hold it alike.
TEST(Axes, LogitsTakeTheHeadAsTrainingHoldsIt) {
  const engine::Run run = run_of("tp: 2, micro_batch: 2");
  engine::CompileOptions how;
  how.purpose = engine::Purpose::logits;
  const std::map<std::string, std::string> training = stored(engine::compile(run).program);
  for (const auto& [name, layout] : stored(engine::compile(run, how).program)) {
    EXPECT_EQ(layout, training.at(name)) << name;
  }
}

}  // namespace
}  // namespace hocket::parallel

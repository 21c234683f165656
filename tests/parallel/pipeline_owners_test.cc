// SPDX-License-Identifier: Apache-2.0
// The end of a step along the pipeline: tensors that are partial over several ranks are summed
// once, in one vector for any number of parameters, and by ordinary ops.
#include "parallel/lowering/pipeline_owners.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "graph/names.h"
#include "parallel/lowering/pipeline.h"
#include "run/compile.h"

namespace hocket::parallel {
namespace {

engine::Compiled compiled(const std::string& plan, bool tied) {
  const engine::Run run = engine::parse_run(
      fmt::format(
          "model: {{config: {{model_type: qwen3_moe, vocab_size: 32, hidden_size: 8, "
          "num_hidden_layers: 4, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
          "intermediate_size: 8, num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 4, "
          "decoder_sparse_step: 1, mlp_only_layers: [], tie_word_embeddings: {}}}}}\n"
          "train: {{global_batch: 8, seq_len: 4}}\nplan: {{{}}}\n",
          tied, plan),
      "pipeline_owners", {});
  return engine::compile(run);
}

Pipeline one_layer_a_rank() {
  return {.num_ranks = 4, .stage_of_layer = {0, 1, 2, 3}, .routes = {{0, 1, 2, 3}}};
}

graph::TensorId find(const graph::Graph& graph, const std::string& name) {
  const graph::TensorId id = graph.find(name);
  EXPECT_NE(id, graph::kNone) << name;
  return id;
}

TEST(PipelineOwners, ParametersAreStoredWhereTheyAreRead) {
  const engine::Compiled made = compiled("pp: 4", true);
  const graph::Graph& graph = made.reference;
  const PipelineOwners owners(graph, one_layer_a_rank());
  EXPECT_EQ(owners.has(find(graph, "model.embed_tokens.weight")), (PipelineRanks{0, 3}));
  EXPECT_EQ(owners.has(find(graph, "model.layers.2.mlp.gate.weight")), (PipelineRanks{2}));
}

TEST(PipelineOwners, AGradientOfSeveralStagesIsPartialAlongThePipeline) {
  const engine::Compiled made = compiled("pp: 4", true);
  const graph::Graph& graph = made.reference;
  const PipelineOwners owners(graph, one_layer_a_rank());
  for (const graph::ParamGrad& grad : graph.grads) {
    const bool tied = graph.tensor(grad.param).name == "model.embed_tokens.weight";
    EXPECT_EQ(owners.partial(grad.total), tied) << graph.tensor(grad.param).name;
    EXPECT_EQ(owners.has(grad.total), owners.has(grad.param)) << graph.tensor(grad.param).name;
    for (graph::TensorId part : grad.contributions) {
      EXPECT_EQ(owners.partial(part), tied);
      EXPECT_EQ(owners.has(part).size(), 1u);
    }
  }
}

TEST(PipelineOwners, OnOneRankNothingIsPartial) {
  const engine::Compiled made = compiled("pp: 1", true);
  const graph::Graph& graph = made.reference;
  const PipelineOwners owners(graph,
                              {.num_ranks = 1, .stage_of_layer = {0, 0, 0, 0}, .routes = {{0}}});
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    EXPECT_FALSE(owners.partial(static_cast<graph::TensorId>(id))) << graph.tensors[id].name;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    EXPECT_FALSE(owners.gathers(static_cast<graph::NodeId>(n)));
    EXPECT_EQ(owners.runs(static_cast<graph::NodeId>(n)), (PipelineRanks{0}));
  }
}

TEST(PipelineOwners, IncompleteInputsAreGatheredAtTheReaders) {
  const engine::Compiled made = compiled("pp: 4", true);
  const graph::Graph& graph = made.reference;
  const PipelineOwners owners(graph, one_layer_a_rank());
  const graph::TensorId norm = find(graph, graph::names::kGradNorm);
  const graph::NodeId clip = graph.tensor(norm).producer;
  EXPECT_TRUE(owners.gathers(clip));
  EXPECT_EQ(owners.runs(clip), (PipelineRanks{0, 1, 2, 3}));
  for (graph::TensorId part : graph.nodes[clip].in) {
    EXPECT_TRUE(owners.partial(part));
    EXPECT_EQ(owners.has(part).size(), 1u) << "counted once: " << graph.tensor(part).name;
  }
}

/// All norms are in one vector, set to zero once and summed once over the pipeline.
TEST(PipelineOwners, ARankZeroesOneVectorForAllMissingNorms) {
  for (const bool tied : {false, true}) {
    for (const char* plan :
         {"pp: 4", "pp: 2, pp_chunks: 2, pp_schedule: interleaved, micro_batch: 2",
          "pp: 2, dp: 4, ep: 2"}) {
      SCOPED_TRACE(plan);
      const engine::Compiled made = compiled(plan, tied);
      const program::Program& program = made.program;
      for (const program::RankClass& cls : program.classes) {
        const auto count = [&](const char* op, bool with_views) {
          return std::count_if(cls.tasks.begin(), cls.tasks.end(), [&](const program::Task& task) {
            return program.kind(task).op == op &&
                   (!with_views || cls.buffers[task.in[0]].kind == program::BufferKind::view);
          });
        };
        EXPECT_EQ(count("zero", false), 1);
        EXPECT_EQ(count("clip_coef", true), 1);
      }
      EXPECT_TRUE(check::check(program, made.reference).ok());
    }
  }
}

TEST(PipelineOwners, AStageWithoutParametersTakesNoPart) {
  const engine::Compiled made = compiled("pp: 4, pp_layers: [3, 1, 0, 0]", false);
  const program::Program& program = made.program;
  ASSERT_EQ(program.classes.size(), 4u);
  const auto has_clip = [&](const program::RankClass& cls) {
    return std::any_of(cls.tasks.begin(), cls.tasks.end(), [&](const program::Task& task) {
      return program.kind(task).op == "clip_coef";
    });
  };
  EXPECT_TRUE(has_clip(program.classes[0]));
  EXPECT_TRUE(has_clip(program.classes[1]));
  EXPECT_FALSE(has_clip(program.classes[2]));
  EXPECT_TRUE(has_clip(program.classes[3])) << "the head";
  EXPECT_TRUE(check::check(program, made.reference).ok());
}

}  // namespace
}  // namespace hocket::parallel

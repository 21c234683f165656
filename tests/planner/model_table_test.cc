// SPDX-License-Identifier: Apache-2.0
// Types of layers: those of one type have equal nodes, whatever a model has in turn or first.
#include "planner/model_table.h"

#include <gtest/gtest.h>

#include <string>

#include "planner/space.h"
#include "run/compile.h"
#include "run/config.h"

namespace hocket::planner {
namespace {

graph::Graph graph_of(const std::string& family, const std::string& more) {
  const std::string model =
      R"({"model_type": ")" + family +
      R"(", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
  "max_position_embeddings": 512, "rms_norm_eps": 1e-6)" +
      more + "}";
  return engine::reference(engine::parse_run(
      "{model: {config: " + model + "}, train: {global_batch: 1, seq_len: 32}}", "test", {}));
}

double flops(const LayerWork& work) {
  double sum = 0;
  for (const NodeWork& node : work.nodes) {
    sum += node.flops;
  }
  return sum;
}

TEST(ModelTable, EqualLayersHaveOneType) {
  for (const ModelTable& table :
       tables_of(graph_of("llama", R"(, "tie_word_embeddings": false)"), kRecomputeNames)) {
    EXPECT_EQ(table.type_of, std::vector<size_t>(6, kFirstLayerType));
    EXPECT_EQ(table.layer_types.size(), kFirstLayerType + 1);
    EXPECT_EQ(of(table.layer_types[kHead].tied, Share::features), 0);
  }
}

TEST(ModelTable, LayersWithoutExpertsHaveATypeOfTheirOwn) {
  const graph::Graph graph =
      graph_of("qwen3_moe", R"(, "moe_intermediate_size": 16, "num_experts": 4,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "tie_word_embeddings": false,
  "mlp_only_layers": [0, 3])");
  for (const ModelTable& table : tables_of(graph, kRecomputeNames)) {
    EXPECT_EQ(table.type_of, (std::vector<size_t>{2, 3, 3, 2, 3, 3}));
    EXPECT_FALSE(table.layer_types[2].has_experts);
    EXPECT_TRUE(table.layer_types[3].has_experts);
  }
}

TEST(ModelTable, LayersWithAnotherWindowHaveATypeOfTheirOwn) {
  // Every other layer's attention sees fewer keys: its nodes have another attribute, no other
  // shape.
  graph::Graph graph = graph_of("llama", R"(, "tie_word_embeddings": false)");
  for (graph::Node& node : graph.nodes) {
    if (node.op.starts_with("attention") && node.layer % 2 == 1) {
      node.attrs.set("window", int64_t{4});
    }
  }
  for (const ModelTable& table : tables_of(graph, kRecomputeNames)) {
    ASSERT_EQ(table.type_of, (std::vector<size_t>{2, 3, 2, 3, 2, 3}));
    EXPECT_LT(flops(table.layer_types[3]), flops(table.layer_types[2]));
  }
}

TEST(ModelTable, TheHeadHasACopyOfATiedEmbedding) {
  for (const ModelTable& table :
       tables_of(graph_of("llama", R"(, "tie_word_embeddings": true)"), kRecomputeNames)) {
    EXPECT_EQ(of(table.layer_types[kHead].tied, Share::features), 64 * 32);
    EXPECT_EQ(of(table.layer_types[kEmbedding].parameters, Share::features), 64 * 32);
  }
}

}  // namespace
}  // namespace hocket::planner

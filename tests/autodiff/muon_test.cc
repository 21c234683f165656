// SPDX-License-Identifier: Apache-2.0
// The optimizer part of a graph with Muon: which parameters it updates, as which matrices, and
// parameter groups.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "models/build.h"
#include "models/lora.h"
#include "tests/check/check_util.h"
#include "tests/models/small_models.h"

namespace hocket::autodiff {
namespace {

using graph::TensorId;
using graph::TensorKind;

graph::Graph updated_by(const models::ModelConfig& model, const OptimizerConfig& config,
                        graph::DType dtype = graph::DType::f32, bool float8 = false) {
  models::BuildOptions options;
  options.tokens = 16;
  options.sequence_length = 8;
  options.dtype = dtype;
  options.float8 = float8;
  graph::Graph graph = models::build(model, options);
  differentiate(graph);
  append_optimizer(graph, config);
  return graph;
}

OptimizerConfig muon() {
  OptimizerConfig config;
  config.name = "muon";
  return config;
}

/// Returns the op that updates every parameter, by the parameter's name. For Muon also the op that
/// orthogonalises the matrix, and its row dims.
std::map<std::string, std::string> updates(const graph::Graph& graph) {
  std::map<std::string, std::string> list;
  for (const graph::Node& node : graph.nodes) {
    const graph::Tensor& param = graph.tensor(node.in[0]);
    if (node.phase != graph::Phase::optimizer || param.kind != TensorKind::param) continue;
    std::string& text = list[param.name];
    text = node.op;
    if (!text.starts_with("muon")) continue;
    const graph::Node& before = graph.nodes[static_cast<size_t>(graph.tensor(node.in[1]).producer)];
    text += " " + before.op + " " + std::to_string(before.attrs.i_or("rows", 1));
  }
  return list;
}

TEST(Muon, UpdatesTheMatricesOfBlocks) {
  auto list = updates(updated_by(check::test::moe(1), muon()));
  const std::string layer = "model.layers.0.";
  // Heads form one matrix: [H, d, D] and [D, H, d]. Every expert, gate and up is its own matrix.
  EXPECT_EQ(list[layer + "self_attn.q_proj.weight"], "muon orthogonalize 2");
  EXPECT_EQ(list[layer + "self_attn.v_proj.weight"], "muon orthogonalize 2");
  EXPECT_EQ(list[layer + "self_attn.o_proj.weight"], "muon orthogonalize 1");
  EXPECT_EQ(list[layer + "mlp.gate.weight"], "muon orthogonalize 1");
  EXPECT_EQ(list[layer + "mlp.experts.gate_up_proj"], "muon orthogonalize_each 1");
  EXPECT_EQ(list[layer + "mlp.experts.down_proj"], "muon orthogonalize_each 1");
  // Muon updates only matrices inside blocks.
  EXPECT_EQ(list["model.embed_tokens.weight"], "adamw");
  EXPECT_EQ(list["model.norm.weight"], "adamw");
  EXPECT_EQ(list[layer + "input_layernorm.weight"], "adamw");
  const graph::Graph dense = updated_by(check::test::dense(2, false), muon());
  list = updates(dense);
  EXPECT_EQ(list["lm_head.weight"], "adamw");
  EXPECT_EQ(list["model.layers.1.mlp.gate_up_proj.weight"], "muon orthogonalize_each 1");
  EXPECT_EQ(list["model.layers.1.mlp.down_proj.weight"], "muon orthogonalize 1");
  EXPECT_EQ(list.size(), dense.grads.size());
}

/// Returns updates() of a small model with an adapter beside all linear layers and experts.
std::map<std::string, std::string> updates_of_adapter(const std::string& family) {
  const models::ModelConfig model =
      models::parse_config(models::small_model(family).dump(), "test");
  models::Lora lora;
  lora.r = 3;
  lora.target_pattern = "all-linear";
  if (model.num_experts > 0) {
    lora.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  }
  models::BuildOptions options;
  options.tokens = 16;
  options.sequence_length = 8;
  graph::Graph graph = models::build(model, options);
  models::apply_lora(graph, models::match_lora(model, lora, "test"), true);
  differentiate(graph);
  append_optimizer(graph, muon());
  return updates(graph);
}

TEST(Muon, UpdatesTheMatricesOfAdapters) {
  const std::string layer = "model.layers.0.";
  auto list = updates_of_adapter("llama");
  for (const char* name :
       {"self_attn.q_proj.lora_A", "self_attn.k_proj.lora_A", "self_attn.o_proj.lora_A",
        "self_attn.o_proj.lora_B", "mlp.down_proj.lora_A", "mlp.down_proj.lora_B"}) {
    EXPECT_EQ(list[layer + name + ".weight"], "muon orthogonalize 1") << name;
  }
  EXPECT_EQ(list[layer + "self_attn.q_proj.lora_B.weight"], "muon orthogonalize 2");
  EXPECT_EQ(list[layer + "self_attn.v_proj.lora_B.weight"], "muon orthogonalize 2");
  // Gate and up are two modules: each has its own A and B.
  EXPECT_EQ(list[layer + "mlp.gate_up_proj.lora_A.weight"], "muon orthogonalize_each 1");
  EXPECT_EQ(list[layer + "mlp.gate_up_proj.lora_B.weight"], "muon orthogonalize_each 1");
  EXPECT_EQ(list.size(), 3u * 6u * 2u);  // layers, parameters, A and B
  // One module of several projections has one A, and a B for each of them.
  list = updates_of_adapter("phi3");
  EXPECT_EQ(list[layer + "self_attn.qkv_proj.lora_A.weight"], "muon orthogonalize 1");
  EXPECT_EQ(list[layer + "self_attn.q_proj.lora_B.weight"], "muon orthogonalize 2");
  EXPECT_EQ(list[layer + "self_attn.k_proj.lora_B.weight"], "muon orthogonalize 2");
  EXPECT_EQ(list[layer + "mlp.gate_up_proj.lora_A.weight"], "muon orthogonalize 1");
  EXPECT_EQ(list[layer + "mlp.gate_up_proj.lora_B.weight"], "muon orthogonalize_each 1");
  list = updates_of_adapter("qwen3_moe");
  for (const char* name :
       {"gate_up_proj.lora_A", "gate_up_proj.lora_B", "down_proj.lora_A", "down_proj.lora_B"}) {
    EXPECT_EQ(list[layer + "mlp.experts." + name], "muon orthogonalize_each 1") << name;
  }
}

TEST(Muon, HasOneStateAndMasterWeights) {
  for (const bool float8 : {false, true}) {
    const graph::Graph graph =
        updated_by(check::test::dense(1, false), muon(), graph::DType::bf16, float8);
    const std::string name = "model.layers.0.mlp.down_proj.weight";
    EXPECT_EQ(updates(graph)[name], "muon_master orthogonalize 1");
    const TensorId mean = graph.find("momentum_buffer." + name);
    ASSERT_NE(mean, graph::kNone);
    EXPECT_EQ(graph.tensor(mean).state, graph::StateKind::optimizer);
    EXPECT_EQ(graph.tensor(mean).type.dtype, graph::DType::f32);
    EXPECT_NE(graph.find("master." + name), graph::kNone);
    EXPECT_EQ(graph.find("exp_avg." + name), graph::kNone);
    EXPECT_NE(graph.find("exp_avg.model.embed_tokens.weight"), graph::kNone);
    EXPECT_EQ(graph::print(graph::parse_graph(graph::print(graph))), graph::print(graph));
  }
}

TEST(Muon, RatioFollowsTheShapeOfAMatrix) {
  const auto ratio_of = [](const std::string& adjust, const std::string& name) {
    OptimizerConfig config = muon();
    config.adjust_lr = adjust;
    const graph::Graph graph = updated_by(check::test::dense(1, false), config);
    for (const graph::Node& node : graph.nodes) {
      if (node.op == "muon" && graph.tensor(node.in[0]).name == name) return node.attrs.f("ratio");
    }
    return -1.0;
  };
  const graph::Graph graph = updated_by(check::test::dense(1, false), muon());
  const std::string up = "model.layers.0.mlp.gate_up_proj.weight";
  const graph::Dims dims = graph.tensor(graph.find(up)).type.dims;  // [2, F, D]
  const auto rows = static_cast<double>(dims[1]), columns = static_cast<double>(dims[2]);
  EXPECT_DOUBLE_EQ(ratio_of("original", up), std::sqrt(std::max(1.0, rows / columns)));
  EXPECT_DOUBLE_EQ(ratio_of("match_rms_adamw", up), 0.2 * std::sqrt(std::max(rows, columns)));
}

TEST(Groups, HaveSettingsOfTheirOwn) {
  OptimizerConfig config = muon();
  config.weight_decay = 0.25;
  config.groups = {{{"*q_proj*", "*k_proj*"}, 0.5, 0.125, ""},
                   {{"*_proj*"}, 2, {}, "adamw"},
                   {{"*embed*"}, 1, 0.0, ""}};
  const graph::Graph graph = updated_by(check::test::dense(1, false), config);
  std::map<std::string, const graph::Node*> of;
  for (const graph::Node& node : graph.nodes) {
    const graph::Tensor& param = graph.tensor(node.in[0]);
    if (node.phase == graph::Phase::optimizer && param.kind == TensorKind::param) {
      of[param.name] = &node;
    }
  }
  const graph::Node& q = *of["model.layers.0.self_attn.q_proj.weight"];  // the first that matches
  EXPECT_EQ(q.op, "muon");
  EXPECT_EQ(q.attrs.f("lr_scale"), 0.5);
  EXPECT_EQ(q.attrs.f("weight_decay"), 0.125);
  const graph::Node& o = *of["model.layers.0.self_attn.o_proj.weight"];
  EXPECT_EQ(o.op, "adamw");
  EXPECT_EQ(o.attrs.f("lr_scale"), 2);
  EXPECT_EQ(o.attrs.f("weight_decay"), 0.25);
  EXPECT_EQ(of["model.embed_tokens.weight"]->attrs.f("weight_decay"), 0);
  EXPECT_FALSE(of["model.norm.weight"]->attrs.has("lr_scale"));
}

TEST(Groups, RefuseAPatternThatMatchesNothing) {
  OptimizerConfig config;
  config.groups = {{{"*q_proj*", "*q_prj*"}, 1, {}, ""}};
  try {
    updated_by(check::test::dense(1, false), config);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'*q_prj*' matches no trained parameter"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace hocket::autodiff

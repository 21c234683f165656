// SPDX-License-Identifier: Apache-2.0
// The text form of graphs: prints and parses back to the same thing, refuses everything else.
#include "base/error.h"
#include "base/rng.h"
#include "graph/graph.h"

#include <gtest/gtest.h>

#include "autodiff/autodiff.h"
#include "models/build.h"
#include "parallel/lowering/lower.h"
#include "passes/pass.h"
#include "program/finalize.h"
#include "program/program.h"

namespace hocket {
namespace {

constexpr const char* kMoe = R"({"model_type": "qwen3_moe", "vocab_size": 97, "hidden_size": 24,
  "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
  "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": true,
  "mlp_only_layers": [1], "decoder_sparse_step": 1, "router_aux_loss_coef": 0.01,
  "tie_word_embeddings": true,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})";

graph::Graph training_graph() {
  models::BuildOptions o;
  o.tokens = 32;
  o.sequence_length = 16;
  o.balance_coef = 0.01;
  graph::Graph g = models::build(models::parse_config(kMoe, "test"), o);
  autodiff::differentiate(g);
  autodiff::append_optimizer(g, {0.9, 0.95, 1e-8, 0.1, 1.0});
  passes::PassRunner({"recompute"}, {}, passes::PassOptions({"recompute=full"})).run(g);
  return g;
}

void expect_same(const graph::Graph& a, const graph::Graph& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.outputs, b.outputs);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const graph::Tensor &x = a.tensors[i], &y = b.tensors[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_TRUE(x.type == y.type && x.kind == y.kind && x.producer == y.producer &&
                x.layer == y.layer && x.per_step == y.per_step && x.expert == y.expert &&
                x.init.kind == y.init.kind && x.init.value == y.init.value)
        << x.name;
  }
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    const graph::Node &x = a.nodes[i], &y = b.nodes[i];
    EXPECT_TRUE(x.op == y.op && x.attrs == y.attrs && x.in == y.in && x.out == y.out &&
                x.phase == y.phase && x.layer == y.layer && x.accumulate == y.accumulate &&
                x.recompute == y.recompute)
        << "node " << i << " " << x.op;
  }
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (size_t i = 0; i < a.grads.size(); ++i) {
    EXPECT_EQ(a.grads[i].param, b.grads[i].param);
    EXPECT_EQ(a.grads[i].contributions, b.grads[i].contributions);
  }
}

TEST(GraphText, PrintsAndParsesBack) {
  const graph::Graph g = training_graph();
  const std::string text = graph::print(g);
  const graph::Graph back = graph::parse_graph(text);
  expect_same(g, back);
  EXPECT_EQ(text, graph::print(back));
}

TEST(GraphText, ParsedGraphLowersToTheSameProgram) {
  const graph::Graph g = training_graph();
  parallel::Plan plan;
  plan.pp = 2;
  plan.num_micro_batches = 2;
  auto lowered = [&](const graph::Graph& graph) {
    program::Program p = parallel::lower(graph, plan);
    program::finalize(p);
    return program::print(p);
  };
  EXPECT_EQ(lowered(g), lowered(graph::parse_graph(graph::print(g))));
}

TEST(GraphText, ReadsAnEmptyGraphAndSkipsComments) {
  graph::Graph g;
  expect_same(g, graph::parse_graph(graph::print(g)));
  expect_same(g, graph::parse_graph("# a comment\n\n" + graph::print(g) + "# the end"));
}

TEST(GraphText, RefusesWithTheLine) {
  const std::string head = "hocket-graph 1\ngraph layers=1 name=\"g\"\n";
  const std::string two =
      head + "tensor 0 input i32[4] name=\"a\"\ntensor 1 activation f32[4] name=\"b\"\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "empty"},
      {"hocket-graph 2\n", "line 1"},
      {head + "tensor 0 input i32[4]\n", "line 3"},
      {head + "tensor 1 input i32[4] name=\"a\"\n", "expected number 0"},
      {head + "tensor 0 thing i32[4] name=\"a\"\n", "thing"},
      {head + "tensor 0 input i32[4 name=\"a\"\n", "i32[4"},
      {head + "tensor 0 input i32[4] init=often:1 name=\"a\"\n", "init"},
      {head + "tensor 0 input i32[4] by=7 name=\"a\"\n", "node 7"},
      {two + "node 0 add forward in=0,5 out=1\n", "5 does not exist"},
      {two + "node 0 add forward in=0,x out=1\n", "'x' is no number"},
      {two + "node 0 add sideways in=0 out=1\n", "sideways"},
      {two + "node 0 add\n", "word is missing"},
      {two + "losses -1\n", "does not exist"},
      {two + "grad 0,1 1\n", "one parameter"},
      {two + "edge 0 1\n", "unknown line"},
  };
  for (const auto& [text, expected] : cases) {
    try {
      graph::parse_graph(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(expected), std::string::npos) << e.what();
      EXPECT_EQ(e.exit_code(), 2);
    }
  }
}

TEST(GraphText, DamagedTextNeverCrashes) {
  const std::string text = graph::print(training_graph());
  Rng rng(20);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = text;
    const size_t at = rng.below(damaged.size());
    if (i % 3 == 0) {
      damaged.resize(at);
    } else {
      damaged[at] = static_cast<char>(32 + rng.below(95));
    }
    try {
      graph::parse_graph(damaged);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(GraphText, PrintsDot) {
  const std::string dot = graph::to_dot(training_graph());
  EXPECT_EQ(dot.rfind("digraph", 0), 0u);
  EXPECT_NE(dot.find("attention"), std::string::npos);
  EXPECT_EQ(dot.substr(dot.size() - 2), "}\n");
}

}  // namespace
}  // namespace hocket

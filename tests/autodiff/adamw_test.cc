// SPDX-License-Identifier: Apache-2.0
// The optimizer part of a graph: one update per parameter, and its weight decay.
#include <gtest/gtest.h>

#include <set>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "models/build.h"
#include "tests/check/check_util.h"

namespace hocket::autodiff {
namespace {

using graph::TensorId;
using graph::TensorKind;

graph::Graph with_optimizer(const models::ModelConfig& model, const OptimizerConfig& config) {
  models::BuildOptions options;
  options.tokens = 16;
  options.sequence_length = 8;
  graph::Graph g = models::build(model, options);
  differentiate(g);
  append_optimizer(g, config);
  return g;
}

TEST(AdamW, EveryParameterIsUpdatedOnceAndOnlyMatricesAreDecayed) {
  OptimizerConfig config;
  config.beta1 = 0.7;
  config.beta2 = 0.8;
  config.eps = 0.01;
  config.weight_decay = 0.25;
  config.max_norm = 3;
  for (const auto& model : {check::test::dense(2, true), check::test::moe(2)}) {
    const graph::Graph g = with_optimizer(model, config);
    std::set<std::string> updated, wanted, vectors;
    for (const graph::Tensor& t : g.tensors) {
      if (t.kind == TensorKind::param) {
        wanted.insert(t.name);
      }
    }
    for (const graph::Node& n : g.nodes) {
      if (n.op == "clip_coef") {
        EXPECT_EQ(n.attrs.f("max_norm"), 3);
      }
      if (n.op != "adamw") continue;
      const graph::Tensor& param = g.tensor(n.in[0]);
      EXPECT_TRUE(updated.insert(param.name).second) << param.name << " is updated twice";
      EXPECT_EQ(n.attrs.f("beta1"), 0.7);
      EXPECT_EQ(n.attrs.f("beta2"), 0.8);
      EXPECT_EQ(n.attrs.f("eps"), 0.01);
      // Norm weights are the vectors.
      const bool vector = param.name.find("norm") != std::string::npos;
      if (vector) {
        vectors.insert(param.name);
      }
      EXPECT_EQ(param.type.dims.size() == 1, vector) << param.name;
      EXPECT_EQ(n.attrs.f("weight_decay"), vector ? 0 : 0.25) << param.name;
      for (size_t i : {2, 3}) {
        const graph::Tensor& moment = g.tensor(n.in[i]);
        EXPECT_EQ(moment.kind, TensorKind::state);
        EXPECT_EQ(moment.type, param.type);
        EXPECT_EQ(moment.name, (i == 2 ? "exp_avg." : "exp_avg_sq.") + param.name);
      }
    }
    EXPECT_EQ(updated, wanted);
    EXPECT_GE(vectors.size(), 5u);
  }
}

TEST(AdamW, FrozenParametersHaveNeitherGradientNorState) {
  models::BuildOptions options;
  options.tokens = 16;
  options.sequence_length = 8;
  graph::Graph g = models::build(check::test::dense(2, false), options);
  const graph::TensorId frozen = g.find("model.layers.0.self_attn.o_proj.weight");
  ASSERT_NE(frozen, graph::kNone);
  g.tensors[frozen].trained = false;
  differentiate(g);
  append_optimizer(g, {});
  size_t params = 0, states = 0;
  for (const graph::Tensor& t : g.tensors) {
    params += t.kind == TensorKind::param;
    if (t.kind != TensorKind::state) continue;
    ++states;
    EXPECT_EQ(t.state, graph::StateKind::optimizer) << t.name;
    EXPECT_NE(t.of, frozen) << t.name;
    EXPECT_EQ(g.tensor(t.of).kind, TensorKind::param) << t.name;
  }
  EXPECT_EQ(g.grads.size(), params - 1);
  EXPECT_EQ(states, 2 * (params - 1));
  // The text keeps frozen parameters, and the parameter that each tensor belongs to.
  EXPECT_EQ(graph::print(graph::parse_graph(graph::print(g))), graph::print(g));
  EXPECT_FALSE(graph::parse_graph(graph::print(g)).tensor(frozen).trained);
}

/// Covers all contributions to a gradient, their sums and readers, also with 8-bit products, a tied
/// embedding, and experts.
TEST(AdamW, GradientsMayHaveTheTypeOfTheirParameters) {
  for (const bool float8 : {false, true}) {
    for (const auto& model : {check::test::dense(2, true), check::test::moe(2)}) {
      models::BuildOptions options;
      options.tokens = 16;
      options.sequence_length = 8;
      options.dtype = graph::DType::bf16;
      options.float8 = float8;
      graph::Graph g = models::build(model, options);
      differentiate(g, GradType::params);
      append_optimizer(g, {});
      for (const graph::ParamGrad& grad : g.grads) {
        const graph::Tensor& param = g.tensor(grad.param);
        for (const TensorId contribution : grad.contributions) {
          EXPECT_EQ(g.tensor(contribution).type, param.type) << param.name;
        }
        EXPECT_EQ(g.tensor(grad.total).type, param.type) << param.name;
      }
      size_t updates = 0;
      for (const graph::Node& node : g.nodes) {
        EXPECT_NE(node.op, "adamw");
        if (node.op != "adamw_master") continue;
        ++updates;
        EXPECT_EQ(g.tensor(node.in[1]).type, g.tensor(node.in[0]).type);
        for (const size_t state : {2, 3, 4}) {
          EXPECT_EQ(g.tensor(node.in[state]).type.dtype, graph::DType::f32);
        }
      }
      EXPECT_EQ(updates, g.grads.size());
    }
  }
  // In a type that sums have anyway nothing changes.
  models::BuildOptions options;
  options.tokens = 16;
  graph::Graph plain = models::build(check::test::moe(2), options), same = plain;
  differentiate(plain);
  differentiate(same, GradType::params);
  EXPECT_EQ(graph::print(plain), graph::print(same));
}

TEST(AdamW, MasterWeightsAreCopies) {
  models::BuildOptions options;
  options.tokens = 16;
  options.sequence_length = 8;
  options.dtype = graph::DType::bf16;
  graph::Graph g = models::build(check::test::dense(1, false), options);
  differentiate(g);
  append_optimizer(g, {});
  size_t masters = 0;
  for (const graph::Tensor& t : g.tensors) {
    if (t.init.kind != graph::Init::Kind::copy) continue;
    ++masters;
    EXPECT_EQ(t.type.dtype, graph::DType::f32) << t.name;
    EXPECT_EQ(g.tensor(t.of).type.dtype, graph::DType::bf16) << t.name;
  }
  EXPECT_EQ(masters, g.grads.size());
}

TEST(Optimizers, AreFoundByName) {
  for (const std::string& name : optimizers()) {
    OptimizerConfig config;
    config.name = name;
    const graph::Graph g = with_optimizer(check::test::dense(1, false), config);
    EXPECT_EQ(g.tensor(g.find("hyper")).type.dims,
              graph::Dims{static_cast<int64_t>(hyper_of(config, 0.1, 1).size())})
        << name;
    EXPECT_EQ(hyper_of(config, 0.1, 1)[0], 0.1) << name;
  }
  OptimizerConfig none;
  none.name = "adam";
  EXPECT_THROW(with_optimizer(check::test::dense(1, false), none), Error);
}

}  // namespace
}  // namespace hocket::autodiff

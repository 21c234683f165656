// SPDX-License-Identifier: Apache-2.0
// Programs with bf16 and 8-bit products: types of all tensors, the memory of a parameter, the check
// of plans, and the peaks that a prediction uses.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/small_float.h"
#include "check/check.h"
#include "cost/cost_model.h"
#include "engine/params.h"
#include "engine/programs.h"
#include "graph/names.h"
#include "models/build.h"
#include "program/memory.h"
#include "run/compile.h"
#include "sim/simulator.h"
#include "tests/cluster_util.h"

namespace hocket::engine {
namespace {

using graph::DType;

constexpr const char* kDense =
    "model: {dtype: bf16, config: {model_type: llama, vocab_size: 64, hidden_size: 16, "
    "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, "
    "intermediate_size: 32}}\n"
    "train: {global_batch: 8, seq_len: 8}\n";
constexpr const char* kMoe =
    "model: {dtype: bf16, config: {model_type: qwen3_moe, vocab_size: 64, hidden_size: 16, "
    "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, "
    "intermediate_size: 32, num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8}}\n"
    "train: {global_batch: 8, seq_len: 8}\n";
constexpr const char* kFloat8 = "model.float8=true";

Run run_of(const char* model, const std::string& plan, const std::vector<std::string>& set = {}) {
  return parse_run(std::string(model) + "plan: {" + plan + "}\n", "test", set);
}

TEST(Bf16, SumsAndStatesAreOfF32) {
  for (const char* model : {kDense, kMoe}) {
    const graph::Graph graph = reference(run_of(model, ""));
    std::map<graph::TensorKind, std::set<DType>> types;
    for (const graph::Tensor& tensor : graph.tensors) {
      types[tensor.kind].insert(tensor.type.dtype);
    }
    EXPECT_EQ(types[graph::TensorKind::param], std::set<DType>{DType::bf16});
    EXPECT_EQ(types[graph::TensorKind::state], std::set<DType>{DType::f32});
    for (const graph::ParamGrad& grad : graph.grads) {
      const std::string& name = graph.tensor(grad.param).name;
      EXPECT_EQ(graph.tensor(grad.total).type.dtype, DType::f32) << name;
      EXPECT_NE(graph.find(graph::names::kMasterOf + name), graph::kNone) << name;
    }
    EXPECT_EQ(graph.tensor(graph.losses[0]).type.dtype, DType::f64);
  }
}

/// A run that begins without a checkpoint has the values of f32, rounded, whatever their number.
TEST(Bf16, InitialValuesAreThoseOfF32Rounded) {
  const auto initial = [](const std::vector<std::string>& set) {
    const engine::Run run = run_of(kDense, "tp: 2", set);
    runtime::LocalRanks ranks = local_ranks(run);
    Programs programs(run, ranks);
    Session& session = programs.session(evaluation(run));
    initialise(session.graph(), session.program(), 7, session.store());
    const graph::TensorId id = session.graph().find("model.embed_tokens.weight");
    return gather(session.graph().tensor(id), session.program(), session.store());
  };
  const std::vector<std::byte> wide = initial({"model.dtype=f32", "model.config.vocab_size=160"});
  const std::vector<std::byte> small = initial({"model.config.vocab_size=160"});
  ASSERT_EQ(wide.size(), 160u * 16 * 4);
  ASSERT_EQ(small.size(), 160u * 16 * 2);
  for (size_t i = 0; i < 160 * 16; ++i) {
    float value;
    uint16_t stored;
    std::memcpy(&value, &wide[4 * i], 4);
    std::memcpy(&stored, &small[2 * i], 2);
    ASSERT_EQ(stored, Bf16::encode(value)) << i;
  }
}

TEST(Bf16, AParameterTakesTwoBytesAndTwelveOfStates) {
  const engine::Run run = run_of(kDense, "");
  const Compiled compiled = compile(run);
  const int64_t params = models::param_count(compiled.reference);
  int64_t bytes = 0;
  for (const graph::Tensor& tensor : compiled.reference.tensors) {
    const bool kept =
        tensor.kind == graph::TensorKind::param || tensor.kind == graph::TensorKind::state;
    bytes += kept ? tensor.type.bytes() : 0;
  }
  EXPECT_EQ(bytes, params * (2 + 3 * 4));
  EXPECT_GE(program::memory_of(compiled.program)[0].persistent, bytes);
}

TEST(Bf16, PlansAreProven) {
  const std::pair<const char*, const char*> cases[] = {
      {kDense, "pp: 2, dp: 2, tp: 2, sequence_parallel: true, micro_batch: 2, recompute: full"},
      {kDense, "dp: 4, micro_batch: 1, shard: {params: all, grads: all}, recompute: selective"},
      {kDense, "tp: 2, dp: 2, micro_batch: 2, sequence_parallel: true, comm_tiles: 2"},
      {kDense, "cp: 2, cp_comm_type: p2p, micro_batch: 4"},
      {kDense, "pp: 2, dp: 2, micro_batch: 1, shard: {optimizer: all}, pp_schedule: zb-h1"},
      {kMoe, "dp: 4, ep: 4, micro_batch: 2, moe_chunks: 2"},
      {kMoe, "dp: 2, tp: 2, ep: 4, sequence_parallel: true, micro_batch: 2, recompute: selective"},
  };
  for (const auto& [model, plan] : cases) {
    for (const bool float8 : {false, true}) {
      SCOPED_TRACE(std::string(plan) + (float8 ? ", float8" : ""));
      std::vector<std::string> set;
      if (float8) {
        set.push_back(kFloat8);
      }
      const Compiled compiled = compile(run_of(model, plan, set));
      const check::Verdict verdict = check::check(compiled.program, compiled.reference);
      EXPECT_TRUE(verdict.ok()) << to_text(verdict);
    }
  }
}

/// FLOPs of tasks of an op, by the type that they compute in.
std::map<DType, double> flops_of(const program::Program& program, std::string_view op) {
  std::map<DType, double> flops;
  for (const program::Kind& kind : program.kinds) {
    if (kind.op == op) {
      flops[program::compute_dtype(kind)] += kind.flops;
    }
  }
  return flops;
}

TEST(Bf16, Float8AppliesOnlyToLinearLayersOfTheBlocks) {
  const Compiled compiled = compile(run_of(kMoe, "", {kFloat8}));
  // The router's products, of 16 x 4, stay; q, k, v and o of 16 x 32 or less do not.
  for (const char* op : {"linear", "linear_dx", "linear_dw"}) {
    const std::map<DType, double> flops = flops_of(compiled.program, op);
    ASSERT_EQ(flops.size(), 2u) << op;
    EXPECT_GT(flops.at(DType::f8_e4m3), flops.at(DType::bf16)) << op;
  }
  for (const char* op : {"grouped_linear", "linear_cross_entropy", "attention"}) {
    EXPECT_EQ(flops_of(compiled.program, op).size(), 1u) << op;
    EXPECT_EQ(flops_of(compiled.program, op).count(DType::bf16), 1u) << op;
  }
  EXPECT_THROW(run_of(kDense, "", {kFloat8, "model.dtype=f32"}), Error);
}

TEST(Bf16, PredictedAtThePeakOfItsType) {
  cost::Cluster cluster = test::cluster_of(1, 1);
  cluster.device.memory_bandwidth.value = 1e15;  // products are bound by arithmetic alone
  cluster.device.peak.f8.value = 400e9;
  cluster.device.peak.bf16.value = 200e9;
  cluster.device.peak.f32.value = 10e9;
  const cost::CostModel costs(cluster, std::nullopt, 1);
  const std::map<DType, double> peaks{{DType::f8_e4m3, 400e9}, {DType::bf16, 200e9}};
  const Compiled compiled = compile(run_of(kDense, "", {kFloat8}));
  int products = 0;
  for (const program::Kind& kind : compiled.program.kinds) {
    if (kind.op != "linear") continue;
    ++products;
    const double expected = kind.flops / peaks.at(program::compute_dtype(kind)) * 1e9;
    EXPECT_NEAR(static_cast<double>(costs.work(kind, 0).ns), expected, 1 + expected / 100);
  }
  EXPECT_GT(products, 2);
}

}  // namespace
}  // namespace hocket::engine

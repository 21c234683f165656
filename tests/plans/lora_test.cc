// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Training of adapters: any plan gives the result of one rank.
#include <gtest/gtest.h>

#include "plan_util.h"

namespace hocket::test::lora_test {
namespace {

using Plans = std::vector<std::vector<std::string>>;

Case case_of(const std::string& model, const std::string& adapter, const std::string& plan = "") {
  Case c;
  c.text = "model: {dtype: f64, config: {" + model +
           ", vocab_size: 24, hidden_size: 12, num_hidden_layers: 2, num_attention_heads: 2, "
           "max_position_embeddings: 64}}\n"
           "adapter: {type: lora, r: 3, alpha: 5, " +
           adapter +
           "}\n"
           "train: {seq_len: 8, global_batch: 4, warmup_steps: 0, lr: 0.05, balance_coef: 0}\n"
           "plan: {micro_batch: 4, threads_per_rank: 1" +
           plan + "}\n";
  c.name = "lora";
  c.seed = 3;
  return c;
}

constexpr const char* kLlama =
    "model_type: llama, num_key_value_heads: 2, head_dim: 4, intermediate_size: 8";
constexpr const char* kMoe =
    "model_type: qwen3_moe, num_key_value_heads: 2, head_dim: 4, intermediate_size: 8, "
    "num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 6, norm_topk_prob: true, "
    "decoder_sparse_step: 1, mlp_only_layers: []";
constexpr const char* kPhi3 = "model_type: phi3, num_key_value_heads: 2, intermediate_size: 8";

/// Newton-Schulz multiplies the rounding errors of a gradient by its slope at 0, to the power of
/// its steps.
constexpr double kMuonTolerance = 1e-8;

Case with_muon(Case c, const std::string& keys = "") {
  c.text += "optimizer: {name: muon" + keys + "}\n";
  return c;
}

void expect_equal(const Case& c, const Plans& plans, double tolerance = 1e-10) {
  // B begins as zeros, so that A changes from the second step on.
  constexpr int kSteps = 3;
  const Outcome one = train(c, {.on_one_rank = true, .steps = kSteps});
  for (const std::vector<std::string>& plan : plans) {
    std::string name;
    for (const std::string& key : plan) {
      name += key + " ";
    }
    SCOPED_TRACE(name);
    EXPECT_EQ(difference(train(c, {.steps = kSteps, .overrides = plan}), one, tolerance), "");
  }
}

const Plans& dense_plans() {
  static const Plans plans = {
      {"plan.micro_batch=1"},
      {"plan.micro_batch=2", "plan.recompute=full"},
      {"plan.micro_batch=2", "plan.dp=2", "plan.tp=2"},
      {"plan.micro_batch=2", "plan.dp=2", "plan.tp=2", "plan.sequence_parallel=true"},
      {"plan.micro_batch=2", "plan.dp=2", "plan.shard.params=all", "plan.shard.grads=all"},
      {"plan.micro_batch=1", "plan.pp=2"},
      {"plan.cp=2", "plan.cp_comm_type=p2p", "plan.cp_order=zigzag"}};
  return plans;
}

TEST(Lora, AllLinearLayersEqualUnderEveryPlan) {
  expect_equal(case_of(kLlama, "targets: [all-linear]"), dense_plans());
}

TEST(Lora, WithDropoutIsTheSameUnderEveryPlan) {
  expect_equal(case_of(kLlama, "targets: [all-linear], dropout: 0.3"), dense_plans());
}

TEST(Lora, PartialTargetsAndOtherRanksEqualUnderEveryPlan) {
  expect_equal(case_of(kLlama, "targets: [up_proj, o_proj]"), dense_plans());
  expect_equal(case_of(kLlama,
                       "targets: [gate_proj, up_proj, q_proj], rank_pattern: {up_proj: 2}, "
                       "alpha_pattern: {gate_proj: 7}, modules_to_save: [lm_head]"),
               dense_plans());
}

TEST(Lora, FusedTensorsEqualUnderEveryPlan) {
  expect_equal(case_of(kPhi3, "targets: [qkv_proj, gate_up_proj]"), dense_plans());
}

constexpr const char* kExperts =
    "targets: [q_proj, v_proj], target_parameters: [mlp.experts.gate_up_proj, "
    "mlp.experts.down_proj]";

const Plans& expert_plans() {
  static const Plans plans = {
      {"plan.micro_batch=1"},
      {"plan.micro_batch=2", "plan.dp=2", "plan.ep=2"},
      {"plan.micro_batch=2", "plan.dp=2", "plan.tp=2"},
      {"plan.micro_batch=1", "plan.pp=2", "plan.dp=2", "plan.ep=2"},
      {"plan.micro_batch=2", "plan.dp=2", "plan.ep=2", "plan.moe_chunks=2"}};
  return plans;
}

TEST(Lora, ExpertsEqualUnderEveryPlan) { expect_equal(case_of(kMoe, kExperts), expert_plans()); }

TEST(Lora, WithMuonEqualsUnderEveryPlan) {
  expect_equal(with_muon(case_of(kLlama, "targets: [all-linear]")), dense_plans(), kMuonTolerance);
  expect_equal(with_muon(case_of(kLlama,
                                 "targets: [gate_proj, up_proj, q_proj], rank_pattern: {up_proj: "
                                 "2}, modules_to_save: [lm_head]"),
                         ", adjust_lr: original"),
               dense_plans(), kMuonTolerance);
  expect_equal(with_muon(case_of(kPhi3, "targets: [qkv_proj, gate_up_proj]")), dense_plans(),
               kMuonTolerance);
}

TEST(Lora, ExpertsWithMuonEqualUnderEveryPlan) {
  expect_equal(with_muon(case_of(kMoe, kExperts)), expert_plans(), kMuonTolerance);
}

TEST(Lora, FrozenParametersDoNotChange) {
  const Case c = case_of(kLlama, "targets: [q_proj]");
  const Outcome before = train(c, {.on_one_rank = true, .steps = 1});
  const Outcome after = train(c, {.on_one_rank = true, .steps = 3});
  for (const auto& [name, values] : after.params) {
    const bool adapter = name.find("lora_") != name.npos;
    EXPECT_EQ(adapter, values != before.params.at(name)) << name;
  }
}

}  // namespace
}  // namespace hocket::test::lora_test

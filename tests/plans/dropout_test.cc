// SPDX-License-Identifier: Apache-2.0
// Dropout depends on the seed and on the token's position in the training, and not on the plan:
// ranks, micro-batches, or repeated passes.
#include <gtest/gtest.h>

#include "plan_util.h"

namespace hocket::test::dropout_test {
namespace {

Case dense_case() {
  Case c;
  c.text =
      "model: {dtype: f64, config: {model_type: llama, vocab_size: 24, hidden_size: 12, "
      "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 2, head_dim: 4, "
      "intermediate_size: 8, max_position_embeddings: 64}}\n"
      "train: {seq_len: 8, global_batch: 4, warmup_steps: 0, lr: 0.01, dropout: 0.3}\n"
      "plan: {micro_batch: 4, threads_per_rank: 1}\n";
  c.name = "dropout";
  c.seed = 3;
  return c;
}

Outcome run(const std::vector<std::string>& overrides) {
  return train(dense_case(), {.steps = 2, .overrides = overrides, .with_grads = false});
}

TEST(Dropout, EqualUnderEveryPlan) {
  const Outcome one = run({});
  const std::vector<std::vector<std::string>> plans = {
      {"plan.micro_batch=1"},
      {"plan.micro_batch=2"},
      {"plan.recompute=full"},
      {"plan.micro_batch=2", "plan.dp=2"},
      {"plan.micro_batch=1", "plan.dp=2", "plan.pp=2"},
      {"plan.cp=2", "plan.cp_comm_type=p2p", "plan.cp_order=zigzag"},
      {"plan.tp=2", "plan.sequence_parallel=true"}};
  for (const std::vector<std::string>& plan : plans) {
    SCOPED_TRACE(plan.back());
    EXPECT_EQ(difference(run(plan), one), "");
  }
}

TEST(Dropout, FollowsSeedAndProbability) {
  const Outcome one = run({});
  for (const char* other : {"train.seed=2", "train.dropout=0.31", "train.dropout=0"}) {
    EXPECT_NE(run({other}).losses, one.losses) << other;
  }
  EXPECT_EQ(run({}).losses, one.losses);
}

}  // namespace
}  // namespace hocket::test::dropout_test

// SPDX-License-Identifier: Apache-2.0
// A run that needs more memory than there is does not begin.
#include "train/preflight.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace hocket::train {
namespace {

/// Two ranks of 5,000 bytes: 3,000 of state, 2,000 of activations.
program::Program two_ranks() {
  program::Program p;
  p.mesh.axes = {{"pp", 1}, {"edp", 2}, {"ep", 1}};
  program::RankClass c;
  c.persistent_bytes = 3000;
  c.arena_bytes = 2500;
  c.expected_bytes = 2000;
  p.classes.push_back(c);
  return p;
}

engine::Run run_with(const std::string& budget) {
  return engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "plan: {dp: 2}\n"
      "train: {global_batch: 2}\n"
      "cluster: {memory_budget: " + budget + "}\n",
      "test", {});
}

TEST(RequireMemory, RefusesFromTheFirstByteTooMany) {
  EXPECT_NO_THROW(require_memory(run_with("5000B"), two_ranks()));
  try {
    require_memory(run_with("4999B"), two_ranks());
    ADD_FAILURE() << "a rank of 5,000 bytes began with 4,999";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    const std::string text = e.what();
    for (const char* part : {"2 local ranks", "cluster.memory_budget", "try"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(RequireMemory, WithoutABudgetTheMachineDecides) {
  engine::Run run = run_with("1B");
  run.config.cluster.memory_budget.reset();
  EXPECT_NO_THROW(require_memory(run, two_ranks()));
  program::Program huge = two_ranks();
  huge.classes[0].persistent_bytes = int64_t{1} << 50;
  EXPECT_THROW(require_memory(run, huge), Error);
}

}  // namespace
}  // namespace hocket::train

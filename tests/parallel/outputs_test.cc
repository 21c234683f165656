// SPDX-License-Identifier: Apache-2.0
// Outputs are whole: a program sums its partial outputs, once, and one that leaves a partial output
// to the host is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "run/compile.h"

namespace hocket::parallel {
namespace {

using program::Buffer;
using program::BufferKind;

engine::Compiled mixture(double balance_coef, const std::string& plan) {
  const engine::Run run = engine::parse_run(
      fmt::format(
          "model: {{config: {{model_type: qwen3_moe, vocab_size: 32, hidden_size: 8, "
          "num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
          "intermediate_size: 8, num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 4, "
          "decoder_sparse_step: 1, mlp_only_layers: [], router_aux_loss_coef: {}}}}}\n"
          "train: {{global_batch: 8, seq_len: 4}}\nplan: {{{}}}\n",
          balance_coef, plan),
      "mixture", {});
  return engine::compile(run);
}

bool is_partial(const program::Program& program, const Buffer& buffer) {
  const graph::Mesh& mesh = program.roles[0].mesh;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis].size > 1 && buffer.layout[axis].is_partial()) return true;
  }
  return false;
}

int64_t sums_in_forward(const program::RankClass& cls, const program::Program& program) {
  return std::count_if(cls.tasks.begin(), cls.tasks.end(), [&](const program::Task& task) {
    return program.kind(task).op == "all_reduce" && task.phase == program::Phase::forward;
  });
}

TEST(Outputs, AreNeverPartialSums) {
  for (const char* plan : {"dp: 2", "dp: 2, ep: 2", "dp: 4, ep: 2", "pp: 2, dp: 2, ep: 2",
                           "pp: 3, dp: 2", "dp: 4, ep: 2, recompute: full"}) {
    for (const double balance : {0.0, 0.01}) {
      SCOPED_TRACE(fmt::format("{}, balance {}", plan, balance));
      const engine::Compiled compiled = mixture(balance, plan);
      int counts = 0;
      for (const program::RankClass& cls : compiled.program.classes) {
        for (const Buffer& buffer : cls.buffers) {
          if (buffer.kind != BufferKind::output) continue;
          EXPECT_FALSE(is_partial(compiled.program, buffer)) << buffer.name;
          counts += buffer.name.starts_with("moe.counts.");
        }
      }
      EXPECT_EQ(counts, 3 * compiled.program.num_micro_batches) << "of every layer";
      EXPECT_TRUE(check::check(compiled.program, compiled.reference).ok());
    }
  }
}

TEST(Outputs, AreSummedTogetherUnlessASumExists) {
  // The balance loss needs the counts and the probabilities of a layer, in one all-reduce each.
  // Without it, the counts of all layers are one all-reduce per micro-batch.
  const engine::Compiled with = mixture(0.01, "dp: 2"), without = mixture(0, "dp: 2");
  const int64_t micro_batches = with.program.num_micro_batches;
  EXPECT_EQ(sums_in_forward(with.program.classes[0], with.program), 3 * micro_batches);
  EXPECT_EQ(sums_in_forward(without.program.classes[0], without.program), micro_batches);
  const engine::Compiled alone = mixture(0, "pp: 1");
  EXPECT_EQ(sums_in_forward(alone.program.classes[0], alone.program), 0);
}

/// Gradients accumulate over micro-batches, and are reduced once per step.
TEST(Outputs, GradientsAreNotSummedPerMicroBatch) {
  const engine::Run run = engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "train: {global_batch: 8, seq_len: 4}\nplan: {dp: 2}\n",
      "dense", {});
  const engine::Compiled compiled = engine::compile(engine::gradients(run));
  EXPECT_EQ(sums_in_forward(compiled.program.classes[0], compiled.program), 0);
  EXPECT_TRUE(check::check(compiled.program, compiled.reference).ok());
}

TEST(Outputs, PartialOutputsAreRefused) {
  engine::Compiled compiled = mixture(0, "dp: 2");
  program::RankClass& cls = compiled.program.classes[0];
  // Make the counts of one layer before their all-reduce the output.
  for (const program::Task& task : cls.tasks) {
    if (compiled.program.kind(task).op != "all_reduce" || task.phase != program::Phase::forward) {
      continue;
    }
    Buffer& whole = cls.buffers[task.out[0]];
    Buffer& parts = cls.buffers[task.in[0]];
    ASSERT_EQ(whole.kind, BufferKind::output);
    std::swap(whole.kind, parts.kind);
    std::swap(whole.name, parts.name);
    std::swap(whole.offset, parts.offset);
    break;
  }
  const check::Verdict verdict = check::check(compiled.program, compiled.reference);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.problems[0].rule, "host-contract");
  EXPECT_NE(verdict.problems[0].text.find("is partial over edp"), std::string::npos)
      << verdict.problems[0].text;
}

}  // namespace
}  // namespace hocket::parallel

// SPDX-License-Identifier: Apache-2.0
// A run that needs more memory than there is does not begin; one that comes to take more than its
// plan says so, and more than the budget ends.
#include "train/memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/batch.h"
#include "engine/params.h"
#include "kernels/backend.h"

namespace hocket::train {
namespace {

constexpr int64_t kPages = 5 * program::kPageBytes;

/// Two ranks of 5 pages: 3 of state, 2 of activations.
program::Program two_ranks(int64_t state_pages = 3) {
  program::Program p;
  p.mesh.axes = {{"pp", 1}, {"edp", 2}, {"ep", 1}};
  program::RankClass c;
  c.buffers.resize(2);
  c.buffers[0].kind = program::BufferKind::persistent;
  c.buffers[0].name = "w";
  c.buffers[0].type = {graph::DType::f32, {state_pages * program::kPageBytes / 4}};
  c.buffers[1].type = {graph::DType::f32, {2 * program::kPageBytes / 4}};
  c.buffers[1].offset = 0;
  c.arena_bytes = 2 * program::kPageBytes;
  p.classes.push_back(c);
  return p;
}

engine::Run run_with(const std::string& budget) {
  return engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "plan: {dp: 2}\n"
      "train: {global_batch: 2}\n"
      "cluster: {memory_budget: " +
          budget + "}\n",
      "test", {});
}

TEST(RequireMemory, RefusesFromTheFirstByteTooMany) {
  EXPECT_NO_THROW(require_memory(run_with(fmt::format("{}B", kPages)), two_ranks()));
  try {
    require_memory(run_with(fmt::format("{}B", kPages - 1)), two_ranks());
    ADD_FAILURE() << "a rank of 5 pages began with one byte less";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    const std::string text = e.what();
    for (const char* part : {"a rank of stage 0", "20 KiB", "12 KiB persistent",
                             "8 KiB step buffers", "cluster.memory_budget", "try"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST(RequireMemory, WithoutABudgetTheMachineDecides) {
  engine::Run run = run_with("1B");
  run.config.cluster.memory_budget.reset();
  EXPECT_NO_THROW(require_memory(run, two_ranks()));
  EXPECT_THROW(require_memory(run, two_ranks(int64_t{1} << 38)), Error);
}

/// Two ranks that share four experts, after a step in which every token went to the two experts of
/// rank 0: twice its even share of rows.
class SkewedRouting : public testing::Test {
 protected:
  SkewedRouting()
      : run_(engine::parse_run(
            "model: {config: {model_type: qwen3_moe, vocab_size: 97, hidden_size: 64, "
            "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16, "
            "intermediate_size: 96, num_experts: 4, num_experts_per_tok: 2, "
            "moe_intermediate_size: 48}}\n"
            "train: {seq_len: 96, global_batch: 2}\n"
            "plan: {dp: 2, ep: 2, threads_per_rank: 1, timeout_s: 60}\n",
            "test", {})),
        stores_(2) {
    engine::Compiled compiled = engine::compile(run_);
    engine::initialise(compiled.reference, compiled.program, 1, stores_);
    // Equal logits: ties go to the experts with the lowest numbers.
    for (runtime::PersistentStore& store : stores_) {
      for (auto& [name, entry] : store.entries()) {
        if (name.ends_with("mlp.gate.weight")) {
          std::memset(entry.memory.data(), 0, static_cast<size_t>(entry.type.bytes()));
        }
      }
    }
    planned_ = planned_memory(compiled.program, nullptr);
    session_ = std::make_unique<engine::Session>(std::move(compiled), kernels::cpu_backend(),
                                                 stores_, engine::executor_options(run_));
    engine::Batch batch = engine::empty_batch(session_->compiled(), run_.config.train.seq_len);
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      batch.tokens[i] = batch.targets[i] = static_cast<int32_t>(i * 7 % 97);
      batch.positions[i] = static_cast<int32_t>(i % 96);
    }
    batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
    batch.hyper = engine::Hyper::of(run_.config.train, 0.001, 1);
    session_->feed(batch);
    session_->step();
  }
  int64_t taken() { return measured_memory(*session_, nullptr, 0).total(); }

  engine::Run run_;
  engine::Stores stores_;
  std::vector<program::Memory> planned_;
  std::unique_ptr<engine::Session> session_;
};

TEST_F(SkewedRouting, BeyondThePlanIsReported) {
  if (sysconf(_SC_PAGESIZE) != program::kPageBytes) {
    GTEST_SKIP() << "pages are larger here";
  }
  ASSERT_GT(taken(), planned_[0].total());
  run_.config.cluster.memory_budget = static_cast<double>(taken());
  MemoryWatch watch(run_);
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, const std::string& line) { said.push_back(line); });
  watch.after_step(*session_, nullptr, planned_);
  watch.after_step(*session_, nullptr, planned_);
  set_log_sink({});
  EXPECT_EQ(watch.most(), taken());
  ASSERT_EQ(said.size(), 1u) << "once";
  for (const char* part : {"rank 0 takes", "more than planned", "nothing was dropped"}) {
    EXPECT_NE(said[0].find(part), std::string::npos) << said[0];
  }
}

TEST_F(SkewedRouting, BeyondTheBudgetIsAnError) {
  if (sysconf(_SC_PAGESIZE) != program::kPageBytes) {
    GTEST_SKIP() << "pages are larger here";
  }
  const int64_t budget = planned_[0].total();
  run_.config.cluster.memory_budget = static_cast<double>(budget);
  EXPECT_NO_THROW(require_memory(run_, session_->program(), planned_)) << "it may begin";
  try {
    MemoryWatch(run_).after_step(*session_, nullptr, planned_);
    ADD_FAILURE() << "took " << taken() << " bytes of " << budget;
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 1);
    const std::string text = e.what();
    const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
    for (const std::string& part :
         {"rank 0 takes " + size(taken()), "cluster.memory_budget allows " + size(budget),
          size(budget) + " were planned", std::string("step buffers"), std::string("try")}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
}

}  // namespace
}  // namespace hocket::train

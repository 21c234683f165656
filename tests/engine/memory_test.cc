// SPDX-License-Identifier: Apache-2.0
// A run that needs more memory than there is does not begin; one that comes to take more than was
// planned says so, and ends beyond the budget.
#include "engine/memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "engine/batch.h"
#include "engine/params.h"
#include "kernels/backend.h"
#include "tests/log_util.h"

namespace hocket::engine {
namespace {

constexpr int64_t kPages = 5 * program::kPageBytes;

/// Two ranks of 5 pages: 3 of state, 2 of activations.
program::Program two_ranks(int64_t state_pages = 3) {
  program::Program p;
  p.roles = {{"all", {{{"pp", 1}, {"edp", 2}, {"ep", 1}}}}};
  program::RankClass c;
  c.name = "stage 0";
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

/// Pages that the system can give now.
int64_t free_pages() {
  std::ifstream file("/proc/meminfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string key = "MemAvailable:";
  const size_t at = text.find(key);
  return at == text.npos ? 0
                         : std::stoll(text.substr(at + key.size())) * 1024 / program::kPageBytes;
}

TEST(RequireMemory, WithoutABudgetTheMachineDecides) {
  engine::Run run = run_with("1B");
  run.config.cluster.memory_budget.reset();
  EXPECT_NO_THROW(require_memory(run, two_ranks()));
  // Half of the free memory, and three times the free memory: other processes may take and give
  // some meanwhile.
  const int64_t free = free_pages();
  ASSERT_GT(free, 0);
  EXPECT_NO_THROW(require_memory(run, two_ranks(free / 4)));
  EXPECT_THROW(require_memory(run, two_ranks(free / 2 * 3)), Error);
}

// Arenas are reserved in full: their addresses count, whatever they take of memory.
TEST(RequireMemory, ReservedAddressesCountInFull) {
  const engine::Run run = run_with("1GB");
  program::Program program = two_ranks();
  program.classes[0].arena_bytes = INT64_MAX;
  EXPECT_THROW(require_memory(run, program), Error);
  // Threads have the addresses of one process together.
  program.classes[0].arena_bytes = program::kMaxAddresses / 4 * 3;
  try {
    require_memory(run, program);
    ADD_FAILURE() << "two ranks began with three quarters of the addresses each";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_NE(std::string(e.what()).find("192 TiB of addresses"), std::string::npos) << e.what();
  }
  program.classes[0].arena_bytes = program::kMaxAddresses / 4;
  EXPECT_NO_THROW(require_memory(run, program));
}

/// Two ranks after a step, and a plan that was for less than they take.
class AfterAStep : public testing::Test {
 protected:
  AfterAStep() : run_(run_with("1GB")), ranks_(engine::local_ranks(run_)) {
    engine::Compiled compiled = engine::compile(run_);
    engine::Batch batch = engine::empty_batch(compiled, run_.config.train.seq_len);
    session_ = std::make_unique<engine::Session>(std::move(compiled), runtime::Store(ranks_));
    engine::initialise(session_->graph(), session_->program(), 1, session_->store());
    batch.loss_scale = 1;
    batch.hyper = engine::hyper_of(run_.config.optimizer, 0.001, 1);
    session_->feed(batch);
    session_->step();
    for (int32_t rank = 0; rank < 2; ++rank) {
      taken_ = std::max(taken_, ranks_.measured(rank).total());
    }
    program::Memory planned;
    planned.persistent = program::kPageBytes;
    planned_ = {planned};
  }

  engine::Run run_;
  runtime::LocalRanks ranks_;
  std::unique_ptr<engine::Session> session_;
  int64_t taken_ = 0;
  std::vector<program::Memory> planned_;
};

TEST_F(AfterAStep, WarnsOnceOfMoreMemoryThanPlanned) {
  ASSERT_GT(taken_, planned_[0].total());
  run_.config.cluster.memory_budget = static_cast<double>(taken_);
  MemoryWatch watch(run_);
  const test::LogLines logged;
  watch.after_step(*session_, planned_);
  watch.after_step(*session_, planned_);
  EXPECT_EQ(watch.most(), taken_);
  ASSERT_EQ(logged.lines().size(), 1u);
  for (const char* part : {"more than planned", "4 KiB persistent", "nothing was dropped"}) {
    EXPECT_NE(logged.text().find(part), std::string::npos) << logged.text();
  }
}

TEST_F(AfterAStep, AByteBeyondTheBudgetIsAnError) {
  run_.config.cluster.memory_budget = static_cast<double>(taken_ - 1);
  try {
    MemoryWatch(run_).after_step(*session_, planned_);
    ADD_FAILURE() << "took " << taken_ << " bytes of one less";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 1);
    const std::string text = e.what();
    for (const char* part : {"cluster.memory_budget allows", "4 KiB were planned", "try"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace hocket::engine

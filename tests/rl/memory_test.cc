// SPDX-License-Identifier: Apache-2.0
// Memory of updates: the bound of their micro-batches holds for any samples, and what is planned
// for many micro-batches is what their program takes.
#include "rl/memory.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "engine/programs.h"
#include "rl/batches.h"
#include "train/frozen_model.h"

namespace hocket::rl {
namespace {

engine::Run small_run(const std::vector<std::string>& overrides = {}) {
  return engine::parse_run(R"(
objective: rl
model:
  config: {model_type: llama, vocab_size: 64, hidden_size: 32, num_hidden_layers: 4,
           num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, intermediate_size: 64,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 512, tie_word_embeddings: true}
train: {steps: 1, seq_len: 128}
rl: {rewards: [{type: digits}], kl_coef: 0.1}
plan: {pp: 2, threads_per_rank: 1}
)",
                           "test", overrides);
}

TEST(RlMemory, NoSamplesNeedMoreMicroBatchesThanTheBound) {
  Rng random(1);
  int reached = 0;
  for (int round = 0; round < 500; ++round) {
    const int64_t seq_len = random.between(4, 40), longest = random.between(2, seq_len);
    const int64_t count = random.between(1, 60);
    const int64_t rows_at_once = random.between(1, 4), multiple = random.between(1, 4);
    const bool all_longest = random.between(0, 3) == 0;
    std::vector<Prompt> prompts(static_cast<size_t>(count));
    std::vector<Sample> samples(prompts.size());
    std::vector<LossInputs> inputs(prompts.size());
    std::vector<Item> items;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const int64_t places = all_longest ? longest : random.between(1, longest);
      prompts[i].ids.assign(1, 0);
      samples[i].tokens.assign(static_cast<size_t>(places), 0);
      items.push_back({&prompts[i], &samples[i], &inputs[i]});
    }
    const int64_t most = most_micro_batches(count, longest, seq_len, rows_at_once, multiple);
    const int64_t taken =
        Packing(items, {.seq_len = seq_len, .most = rows_at_once, .multiple = multiple})
            .micro_batches();
    EXPECT_LE(taken, most);
    EXPECT_EQ(most % multiple, 0);
    reached += taken == most;
    if (all_longest) {
      EXPECT_EQ(taken, most);
    }
  }
  EXPECT_GT(reached, 100);
}

TEST(RlMemory, OfManyMicroBatchesFollowsFromFew) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
    SCOPED_TRACE(schedule);
    const engine::Run run = small_run({std::string("plan.pp_schedule=") + schedule});
    const auto spec = [&](int64_t n) { return engine::training(run, {.num_micro_batches = n}); };
    const std::vector<program::Memory> few = memory_at(spec, 2, 2), many = memory_at(spec, 40, 2);
    const std::vector<program::Memory> exact = memory_by_rank(engine::compile(spec(40)).program);
    ASSERT_EQ(many.size(), exact.size());
    for (size_t rank = 0; rank < many.size(); ++rank) {
      const auto total = static_cast<double>(exact[rank].total());
      EXPECT_NEAR(static_cast<double>(many[rank].total()), total, 0.02 * total) << rank;
      EXPECT_EQ(many[rank].persistent, exact[rank].persistent);
    }
    // The first stage holds all activations under gpipe alone.
    const double grown =
        static_cast<double>(many[0].step_buffers) / static_cast<double>(few[0].step_buffers);
    if (std::string(schedule) == "gpipe") {
      EXPECT_GT(grown, 5);
    } else {
      EXPECT_LT(grown, 2);
    }
  }
}

TEST(RlMemory, LaterProgramsAreHeldToThePlan) {
  const engine::Run run = small_run({"plan.pp_schedule=gpipe", "cluster.memory_budget=4 MB"});
  runtime::LocalRanks ranks = engine::local_ranks(run);
  const auto program = [&](int64_t n) {
    return engine::compile(engine::training(run, {.num_micro_batches = n})).program;
  };
  MemoryPlan plan(run, ranks);
  plan.add(memory_by_rank(program(4)), true);
  plan.require(program(2), "less");
  plan.require(program(4), "less");
  try {
    plan.require(program(64), "less");
    FAIL() << "expected a refusal";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("for a program of 64 micro-batches a rank would need"), text.npos) << text;
    EXPECT_NE(text.find("cluster.memory_budget allows"), text.npos) << text;
    EXPECT_NE(text.find("; try less"), text.npos) << text;
  }
}

TEST(RlMemory, ProgramsOfTheReferenceAreInspectedAsThePolicys) {
  const engine::Run run = small_run({"plan.pp=1"});
  runtime::LocalRanks ranks = engine::local_ranks(run);
  int inspected = 0;
  engine::Programs programs(run, ranks, [&](const engine::Compiled& compiled) {
    inspected += compiled.program.purpose == "logprobs";
  });
  train::TrainedReaders readers(programs);
  train::FrozenModel reference(run, "", programs, readers);
  ASSERT_FALSE(reference.shares_store());
  reference.compiled({.num_micro_batches = 2});
  reference.compiled({.num_micro_batches = 2});
  reference.compiled({.num_micro_batches = 3});
  EXPECT_EQ(inspected, 2);
}

}  // namespace
}  // namespace hocket::rl

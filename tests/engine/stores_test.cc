// SPDX-License-Identifier: Apache-2.0
// Several models on the same ranks, in layouts of their own: each has its store, and all share the
// threads and the arenas.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/params.h"
#include "engine/programs.h"
#include "kernels/backend.h"
#include "program/memory.h"
#include "tests/memory_util.h"

namespace hocket::engine {
namespace {

Run run_with_plan(const std::vector<std::string>& plan) {
  std::vector<std::string> all = {"plan.threads_per_rank=1"};
  all.insert(all.end(), plan.begin(), plan.end());
  return parse_run(R"(
model:
  config: {model_type: llama, vocab_size: 512, hidden_size: 96, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, head_dim: 24, intermediate_size: 192,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 256, tie_word_embeddings: false}
train: {global_batch: 4, seq_len: 32}
)",
                   "stores", all);
}

Batch batch_of(const Session& session, int64_t seq_len) {
  Batch batch = empty_batch(session.compiled(), seq_len);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<int32_t>(i * 31 % 512);
    batch.targets[i] = static_cast<int32_t>(i * 17 % 512);
    batch.positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % seq_len);
  }
  batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
  return batch;
}

double loss_of(Session& session, int64_t seq_len) {
  session.feed(batch_of(session, seq_len));
  session.step();
  return session.loss();
}

/// A model's programs on ranks that it may share, with initial parameters.
struct StoredModel {
  StoredModel(const Run& run, runtime::LocalRanks& ranks, uint64_t seed)
      : run(run), programs(run, ranks) {
    Session& session = programs.session(evaluation(run));
    initialise(session.graph(), session.program(), seed, session.store());
  }
  double loss() { return loss_of(programs.session(evaluation(run)), run.config.train.seq_len); }
  const program::Program& program() { return programs.compiled(evaluation(run)).program; }

  const Run& run;
  Programs programs;
};

/// A policy under dp 4, and a frozen reference under tp 2 x dp 2.
TEST(Stores, TwoModelsOfOtherLayoutsTakeTurnsOnTheSameRanks) {
  const engine::Run policy_run = run_with_plan({"plan.dp=4"});
  const engine::Run reference_run = run_with_plan({"plan.dp=2", "plan.tp=2"});
  const auto alone = [](const engine::Run& run, uint64_t seed) {
    runtime::LocalRanks ranks = local_ranks(run);
    return StoredModel(run, ranks, seed).loss();
  };
  const double policy_alone = alone(policy_run, 3), reference_alone = alone(reference_run, 4);
  ASSERT_NE(policy_alone, reference_alone);

  runtime::LocalRanks ranks = local_ranks(policy_run);
  StoredModel policy(policy_run, ranks, 3), reference(reference_run, ranks, 4);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(policy.loss(), policy_alone);
    EXPECT_EQ(reference.loss(), reference_alone);
  }
  // Counts both stores, and of all else the larger need of the two.
  const program::Memory one = program::memory_of(policy.program()).at(0);
  const program::Memory other = program::memory_of(reference.program()).at(0);
  for (const int32_t rank : ranks.ids()) {
    const program::Memory taken = ranks.measured(rank);
    EXPECT_EQ(taken.persistent,
              persistent_bytes(policy.program()) + persistent_bytes(reference.program()))
        << rank;
    EXPECT_LE(taken.persistent, one.persistent + other.persistent) << rank;
    EXPECT_LE(taken.step_buffers, std::max(one.step_buffers, other.step_buffers)) << rank;
    EXPECT_EQ(taken.inputs_outputs, std::max(one.inputs_outputs, other.inputs_outputs)) << rank;
    EXPECT_GT(taken.step_buffers, 0);
  }
}

TEST(Stores, OneModelLearnsAndTheOtherStays) {
  const engine::Run run = run_with_plan({"plan.dp=4"});
  const engine::Run reference_run = run_with_plan({"plan.dp=2", "plan.tp=2"});
  runtime::LocalRanks ranks = local_ranks(run);
  StoredModel policy(run, ranks, 3), reference(reference_run, ranks, 3);
  const double before = policy.loss(), frozen = reference.loss();
  Session& session = policy.programs.session();
  initialise(session.graph(), session.program(), 3, session.store());  // optimizer state
  for (int64_t step = 1; step <= 3; ++step) {
    Batch batch = batch_of(session, run.config.train.seq_len);
    batch.hyper = hyper_of(run.config.optimizer, 0.001, step);
    session.feed(batch);
    session.step();
    EXPECT_EQ(reference.loss(), frozen);
  }
  EXPECT_LT(policy.loss(), before);
  EXPECT_EQ(reference.loss(), frozen);
}

/// An evaluation with other layouts of the parameters follows the training in a store of its own,
/// on the same ranks. It takes no more memory than is planned for both.
TEST(Stores, AReaderFollowsATrainingThatHoldsParametersOtherwise) {
  for (const char* shard : {"none", "all"}) {
    SCOPED_TRACE(shard);
    const engine::Run run = run_with_plan({"plan.dp=4", "plan.shard.params=" + std::string(shard)});
    const engine::Run whole = run_with_plan({"plan.dp=4"});
    runtime::LocalRanks ranks = local_ranks(run);
    Programs programs(run, ranks);
    Session& session = programs.session();
    initialise(session.graph(), session.program(), 3, session.store());
    const ProgramSpec spec = losses(whole, {.num_micro_batches = 1});
    ParameterReader reader(programs, spec, &programs.compiled());
    const std::vector<program::Memory> planned =
        program::memory_with(session.program(), &reader.session().program());
    double last = 1e9;
    for (int64_t step = 1; step <= 3; ++step) {
      Batch batch = batch_of(session, run.config.train.seq_len);
      batch.hyper = hyper_of(run.config.optimizer, 0.001, step);
      session.feed(batch);
      session.step();
      reader.update();
      const double loss = loss_of(reader.session(), run.config.train.seq_len);
      EXPECT_LT(loss, last);
      last = loss;
    }
    const bool shares = &reader.session().store().at(0) == &session.store().at(0);
    EXPECT_EQ(shares, std::string(shard) == "none");
    for (const int32_t rank : ranks.ids()) {
      EXPECT_LE(ranks.measured(rank).total(),
                planned[session.program().class_of(rank).value()].total())
          << rank;
    }
  }
}

}  // namespace
}  // namespace hocket::engine

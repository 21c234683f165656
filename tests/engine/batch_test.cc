// SPDX-License-Identifier: Apache-2.0
// Every rank gets its rows of the batch, in the order of the micro-batches, and the step's numbers.
#include "engine/batch.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "engine/params.h"
#include "engine/session.h"
#include "kernels/backend.h"

namespace hocket::engine {
namespace {

class NoKernels : public kernels::Backend {
 public:
  std::string describe() const override { return "kernels that do nothing"; }
  kernels::KernelFn find(std::string_view, kernels::Device,
                         const kernels::OperandTypes&) const override {
    return [](const kernels::KernelArgs&) {};
  }
  void enter_thread(int) override {}
};

Run dense_run(const std::vector<std::string>& overrides) {
  return parse_run(R"(
model:
  config: {model_type: llama, vocab_size: 50, hidden_size: 8, num_hidden_layers: 2,
           num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 12,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 64, tie_word_embeddings: false}
train: {global_batch: 8, seq_len: 3}
)",
                   "test", overrides);
}

/// Ranks that hold inputs and run nothing.
struct Ranks {
  explicit Ranks(const Run& run) : Ranks(run, training(run)) {}
  Ranks(const Run& run, const ProgramSpec& spec)
      : local(static_cast<int32_t>(run.plan.world()), std::make_shared<NoKernels>(), {}),
        session(std::make_unique<Session>(compile(spec), runtime::Store(local))) {}
  std::vector<int32_t> ints(int32_t rank, const char* name, int32_t micro_batch) {
    const runtime::Executor& executor = session->run().executor(rank);
    const int64_t n = executor.buffer(name, micro_batch).type.numel();
    const auto* data = static_cast<const int32_t*>(executor.output(name, micro_batch));
    return {data, data + n};
  }
  std::vector<double> doubles(int32_t rank, const char* name) {
    const runtime::Executor& executor = session->run().executor(rank);
    const int64_t n = executor.buffer(name).type.numel();
    const auto* data = static_cast<const double*>(executor.output(name));
    return {data, data + n};
  }
  runtime::LocalRanks local;
  std::unique_ptr<Session> session;
};

/// Token i of the batch is `from + i`.
Batch counted(const Ranks& ranks, int64_t seq_len) {
  Batch batch = empty_batch(ranks.session->compiled(), seq_len);
  std::iota(batch.tokens.begin(), batch.tokens.end(), 0);
  std::iota(batch.targets.begin(), batch.targets.end(), 100);
  std::iota(batch.positions.begin(), batch.positions.end(), 200);
  return batch;
}

TEST(Batch, StagesAndDataParallelRanksGetTheirRows) {
  // Ranks 0, 1: stage 0, which reads tokens; ranks 2, 3: stage 1, which reads targets. Two
  // micro-batches of 4 rows, 2 on each of the data-parallel ranks.
  Ranks ranks(dense_run({"plan.pp=2", "plan.dp=2", "plan.micro_batch=2"}));
  Batch batch = counted(ranks, 3);
  ASSERT_EQ(batch.rows, 8);
  batch.loss_scale = 0.25;
  batch.hyper = {0.5, 0.75, 0.875};
  ranks.session->feed(batch);
  EXPECT_EQ(ranks.ints(0, "tokens", 0), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ranks.ints(1, "tokens", 0), (std::vector<int32_t>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(ranks.ints(0, "tokens", 1), (std::vector<int32_t>{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(ranks.ints(3, "targets", 1), (std::vector<int32_t>{118, 119, 120, 121, 122, 123}));
  EXPECT_EQ(ranks.ints(1, "positions", 1), (std::vector<int32_t>{218, 219, 220, 221, 222, 223}));
  EXPECT_EQ(ranks.ints(3, "positions", 0), (std::vector<int32_t>{206, 207, 208, 209, 210, 211}));
  EXPECT_FALSE(ranks.session->run().executor(0).has("targets", 0));
  EXPECT_EQ(ranks.doubles(2, "loss_scale"), (std::vector<double>{0.25}));
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ranks.doubles(rank, "hyper"), (std::vector<double>{0.5, 0.75, 0.875})) << rank;
  }
}

TEST(Batch, FeedsOnlyTheInputsThatAProgramReads) {
  // Logits need no targets, scale or learning rate.
  const engine::Run run = dense_run({"plan.micro_batch=8"});
  Ranks ranks(run, logits(run));
  ranks.session->feed(counted(ranks, 3));
  EXPECT_EQ(ranks.ints(0, "tokens", 0).size(), 24u);
  EXPECT_FALSE(ranks.session->run().executor(0).has("targets", 0));
  EXPECT_FALSE(ranks.session->run().executor(0).has("hyper"));
}

TEST(Batch, RefusesAnotherSize) {
  Ranks ranks(dense_run({"plan.micro_batch=4"}));
  EXPECT_THROW(ranks.session->feed(Batch(4, 3)), Error);
  EXPECT_THROW(ranks.session->feed(Batch(8, 2)), Error);
  EXPECT_THROW(empty_batch(ranks.session->compiled(), 5), std::logic_error);
}

TEST(Batch, HoldsPaddingUntilFilled) {
  Batch batch(2, 3);
  EXPECT_EQ(batch.num_targets(), 0);
  EXPECT_EQ(batch.positions, std::vector<int32_t>(6, data::padding_position(0)));
  const data::SequenceOut second = batch.row(1);
  second.targets[2] = 0;
  second.targets[1] = 7;
  EXPECT_EQ(batch.targets[5], 0);
  EXPECT_EQ(batch.num_targets(), 2);
}

TEST(Batch, BiasCorrectionsFollowTheStep) {
  OptimizerSection optimizer;
  optimizer.beta1 = 0.5;
  optimizer.beta2 = 0.9;
  const std::vector<double> first = hyper_of(optimizer, 0.1, 1),
                            third = hyper_of(optimizer, 0.1, 3);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_DOUBLE_EQ(first[0], 0.1);
  EXPECT_DOUBLE_EQ(first[1], 0.5);
  EXPECT_NEAR(first[2], 0.1, 1e-15);
  EXPECT_DOUBLE_EQ(third[1], 0.875);
  EXPECT_NEAR(third[2], 0.271, 1e-15);
}

}  // namespace
}  // namespace hocket::engine

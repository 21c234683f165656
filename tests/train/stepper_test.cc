// SPDX-License-Identifier: Apache-2.0
// Single optimizer steps with data, metrics and checkpoints of the test: the inputs of a step, when
// a checkpoint is due, and that a skipped step changes no bit.
#include "train/stepper.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "engine/params.h"
#include "engine/programs.h"

namespace hocket::train {
namespace {

constexpr int64_t kRows = 4, kLength = 8;

engine::Run run_of(const std::vector<std::string>& overrides) {
  return engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 24, hidden_size: 12, num_hidden_layers: 2, "
      "num_attention_heads: 2, num_key_value_heads: 2, head_dim: 4, intermediate_size: 8, "
      "max_position_embeddings: 64}}\n"
      "train: {seq_len: 8, global_batch: 4, save_minutes: 0}\n"
      "plan: {dp: 2, pp: 2, micro_batch: 1, threads_per_rank: 1}\n",
      "test", overrides);
}

/// Sequences of a step, and their number of predicted targets.
StepData data_of(int64_t step) {
  Rng rng(static_cast<uint64_t>(step));
  engine::Batch batch(kRows, kLength);
  for (int64_t r = 0; r < kRows; ++r) {
    const data::SequenceOut row = batch.row(r);
    for (size_t k = 0; k < row.tokens.size(); ++k) {
      row.tokens[k] = static_cast<int32_t>(rng.below(24));
      row.targets[k] = static_cast<int32_t>(rng.below(24));
      row.positions[k] = static_cast<int32_t>(k);
    }
  }
  const int64_t targets = batch.num_targets();
  return {std::move(batch), targets};
}

/// A run with a stepper, and the stepper's parts.
class Steps {
 public:
  explicit Steps(const std::vector<std::string>& overrides = {}, StepsDone done = {})
      : run_(run_of(overrides)), ranks_(engine::local_ranks(run_)), programs_(run_, ranks_) {
    engine::Session& session = programs_.session();
    engine::initialise(session.graph(), session.program(), 1, programs_.store());
    StepperParts parts;
    parts.data = [this](int64_t step) { return data(step); };
    parts.metrics = [this](const StepMetrics& metrics) { reported.push_back(metrics); };
    parts.save = [this](const StepsDone& steps) { saved.push_back(steps); };
    parts.last_checkpoint = [] { return std::string("there is none"); };
    parts.save_before_failure = [this](const std::string& reason) { reasons.push_back(reason); };
    parts.known.predicted_step_s = 7;
    parts.planned.resize(session.program().classes.size());
    for (program::Memory& memory : parts.planned) {
      memory.step_buffers = int64_t{1} << 40;  // no test here is about memory
    }
    stepper_.emplace(run_, session, std::move(parts), std::move(done));
  }
  StepMetrics one(double lr = 0.01) {
    EXPECT_EQ(stepper_->prepare(0), 0);
    return stepper_->run(lr);
  }
  /// Returns the bytes of all parameters and states of all ranks.
  std::map<std::string, std::string> state() {
    std::map<std::string, std::string> bytes;
    for_each([&](const std::string& name, std::byte* at, int64_t size) {
      bytes[name] = {reinterpret_cast<const char*>(at), static_cast<size_t>(size)};
    });
    return bytes;
  }
  /// Sets a parameter of the first rank to NaN.
  void poison() {
    bool first = true;
    for_each([&](const std::string&, std::byte* at, int64_t size) {
      if (first) {
        std::memset(at, 0xff, static_cast<size_t>(size));
      }
      first = false;
    });
  }
  void put_back(const std::map<std::string, std::string>& bytes) {
    for_each([&](const std::string& name, std::byte* at, int64_t size) {
      std::memcpy(at, bytes.at(name).data(), static_cast<size_t>(size));
    });
  }
  Stepper& stepper() { return *stepper_; }
  engine::Session& session() { return programs_.session(); }
  const engine::Run& run() const { return run_; }

  std::function<StepData(int64_t)> data = data_of;
  std::vector<StepMetrics> reported;
  std::vector<StepsDone> saved;
  std::vector<std::string> reasons;

 private:
  /// Visits all parameters, then all states.
  void for_each(const std::function<void(const std::string&, std::byte*, int64_t)>& take) {
    for (const bool params : {true, false}) {
      for (int32_t rank : ranks_.ids()) {
        for (const auto& [name, entry] : programs_.store().at(rank).entries()) {
          const bool is_state = name.starts_with("exp_avg");
          if (is_state == params) continue;
          take(fmt::format("{} of rank {}", name, rank), entry.data,
               entry.type.bytes_of(entry.type.numel()));
        }
      }
    }
  }

  engine::Run run_;
  runtime::LocalRanks ranks_;
  engine::Programs programs_;
  std::optional<Stepper> stepper_;
};

/// Expects the next step to end the run, with `part` in the error.
void expect_failure(Steps& steps, const char* part) {
  try {
    steps.one();
    ADD_FAILURE() << "no error; expected " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// The stepper's inputs equal those of a loop written by hand.
TEST(Stepper, RunsTheStepsOfItsData) {
  Steps steps, by_hand;
  for (int64_t step = 1; step <= 3; ++step) {
    const double lr = 0.01 / static_cast<double>(step);
    const StepMetrics metrics = steps.one(lr);
    engine::Batch batch = data_of(step).batch;
    batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
    batch.hyper = engine::hyper_of(by_hand.run().config.optimizer, lr, step);
    batch.first_token = (step - 1) * kRows * kLength;
    by_hand.session().feed(batch);
    by_hand.session().step();
    EXPECT_EQ(metrics.loss, by_hand.session().loss());
    EXPECT_EQ(metrics.step, step);
    EXPECT_EQ(metrics.lr, lr);
    EXPECT_EQ(metrics.tokens_seen, step * kRows * kLength);
    EXPECT_EQ(metrics.predicted_step_s, 7);
    EXPECT_EQ(metrics.world, 4);
    EXPECT_EQ(metrics.skipped, 0);
  }
  EXPECT_TRUE(steps.state() == by_hand.state());
  ASSERT_EQ(steps.reported.size(), 3U);
  EXPECT_EQ(steps.reported[2].step, 3);
  EXPECT_EQ(steps.stepper().done().losses.size(), 3U);
  EXPECT_GT(steps.stepper().done().seconds, 0);
}

TEST(Stepper, ContinuesAfterTheStepsThatAreDone) {
  Steps steps({}, {.step = 5, .skipped = 2, .seconds = 1.5, .losses = {{5, 2.0}}});
  int64_t asked = 0;
  steps.data = [&](int64_t step) {
    asked = step;
    return data_of(step);
  };
  EXPECT_EQ(steps.one().step, 6);
  EXPECT_EQ(asked, 6);
  EXPECT_EQ(steps.stepper().done().losses.size(), 2U);
  EXPECT_GT(steps.stepper().done().seconds, 1.5);
}

TEST(Stepper, AWordFromTheCallerEndsTheSteps) {
  Steps steps;
  EXPECT_EQ(steps.stepper().prepare(15), 15);
  EXPECT_EQ(steps.stepper().done().step, 0);
}

TEST(Stepper, CheckpointsAreDueByStepsAndByTime) {
  Steps by_steps({"train.save_every=2"}), by_time({"train.save_minutes=1e-9"}), never;
  std::vector<int64_t> due;
  for (int64_t step = 1; step <= 4; ++step) {
    by_steps.one();
    if (by_steps.stepper().save_is_due()) {
      due.push_back(step);
    }
    by_time.one();
    EXPECT_TRUE(by_time.stepper().save_is_due());
    by_time.stepper().save();
    EXPECT_FALSE(by_time.stepper().save_is_due());
    never.one();
    EXPECT_FALSE(never.stepper().save_is_due());
  }
  EXPECT_EQ(due, (std::vector<int64_t>{2, 4}));
  ASSERT_EQ(by_time.saved.size(), 4U);
  EXPECT_EQ(by_time.saved[3].step, 4);
}

// After a step with far too large gradients, the run continues as if that step had not been.
TEST(Stepper, AStepAboveTheNormChangesNothing) {
  Steps plain;
  const double norm = plain.one().grad_norm;
  const std::string most = fmt::format("train.skip_grad_norm={}", 8 * norm);
  Steps steps({most}), without({most});
  // Step 2 divides the loss by one target instead of all, which makes its gradients too large.
  steps.data = [](int64_t step) {
    StepData data = data_of(step);
    data.targets = step == 2 ? 1 : data.targets;
    return data;
  };
  without.data = [](int64_t step) { return data_of(step == 1 ? 1 : step + 1); };
  steps.one();
  const auto before = steps.state();
  const StepMetrics skipped = steps.one();
  EXPECT_GT(skipped.grad_norm, 8 * norm);
  EXPECT_EQ(skipped.skipped, 1);
  EXPECT_NE(to_line(skipped).find("\"train/skipped\":1"), std::string::npos) << to_line(skipped);
  EXPECT_TRUE(steps.state() == before);
  EXPECT_EQ(steps.one().skipped, 1);
  without.one();
  without.one();
  EXPECT_TRUE(steps.state() == without.state());
  EXPECT_EQ(steps.stepper().done().skipped, 1);
}

TEST(Stepper, StopsAtAGradientThatIsNotFinite) {
  Steps steps;
  steps.one();
  steps.poison();
  const auto before = steps.state();
  expect_failure(steps, "there is none; try a lower train.lr, or train.on_nonfinite: skip");
  EXPECT_TRUE(steps.state() == before);
  EXPECT_EQ(steps.stepper().done().step, 1);
  ASSERT_EQ(steps.reasons.size(), 1u);
  EXPECT_EQ(steps.reasons[0].find("step 2: loss nan and gradient norm nan"), 0u)
      << steps.reasons[0];
}

TEST(Stepper, GoesOnWithoutStepsThatAreNotFinite) {
  Steps steps({"train.on_nonfinite=skip"});
  steps.one();
  const auto good = steps.state();
  steps.poison();
  EXPECT_EQ(steps.one().skipped, 1);
  steps.put_back(good);
  EXPECT_EQ(steps.one().skipped, 1);
  EXPECT_FALSE(steps.state() == good);
  // A run ends if it skips too many steps in a row.
  steps.poison();
  const auto before = steps.state();
  for (int i = 0; i < 9; ++i) {
    steps.one();
  }
  expect_failure(steps, "steps 4 to 13 were all skipped");
  EXPECT_TRUE(steps.state() == before);
  EXPECT_EQ(steps.reasons.size(), 1u);
  EXPECT_EQ(steps.stepper().done().skipped, 10);  // without the one that ends the run
}

}  // namespace
}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
// Two models on the same ranks, as an application has them: a policy under dp 4 that learns, and a
// reference under tp 2 x dp 2 that ranks the policy's samples and measures its distance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/params.h"
#include "engine/programs.h"
#include "kernels/backend.h"
#include "program/memory.h"
#include "tests/memory_util.h"

namespace hocket::engine {
namespace {

constexpr int64_t kSequences = 8, kLength = 16, kVocabulary = 64;

Run run_of(const std::vector<std::string>& plan) {
  return parse_run(R"(
model:
  config: {model_type: llama, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, intermediate_size: 48,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 64, tie_word_embeddings: false}
train: {global_batch: 8, seq_len: 16}
optimizer: {weight_decay: 0}
plan: {threads_per_rank: 1}
)",
                   "policy", plan);
}

/// One model: its programs, and its parameters in a store of its own.
class Model {
 public:
  /// One that does not learn has parameters alone, without states of an optimizer.
  Model(const Run& run, runtime::LocalRanks& ranks, uint64_t seed, bool learns)
      : run_(run), programs_(run, ranks), held_by_(learns ? training(run) : logits(run)) {
    initialise(holder().graph(), holder().program(), seed, holder().store());
  }
  const program::Program& program() { return holder().program(); }

  /// Log-probability of every target.
  std::vector<double> log_probs(const Batch& batch) {
    Session& session = programs_.session(logits(run_));
    session.feed(batch);
    session.step();
    std::vector<float> rows;
    for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
      const std::vector<float> part = session.collect_as<float>("logits", m);
      rows.insert(rows.end(), part.begin(), part.end());
    }
    std::vector<double> of_targets;
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      const auto row = rows.begin() + static_cast<int64_t>(i) * kVocabulary;
      double sum = 0;
      for (int64_t k = 0; k < kVocabulary; ++k) {
        sum += std::exp(static_cast<double>(row[k]));
      }
      of_targets.push_back(static_cast<double>(row[batch.targets[i]]) - std::log(sum));
    }
    return of_targets;
  }

  /// One step on the rows that are worth it. Returns the loss.
  double learn(Batch batch, const std::vector<bool>& worth, int64_t step) {
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      if (!worth[i / kLength]) {
        batch.targets[i] = data::kIgnoredTarget;
      }
    }
    batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
    batch.hyper = hyper_of(run_.config.optimizer, 0.003, step);
    Session& session = programs_.session();
    session.feed(batch);
    session.step();
    return session.loss();
  }

  /// Takes over another model's parameters.
  void become(Model& other) {
    copy_parameters(holder().graph(), other.holder().program(), other.holder().store(),
                    holder().program(), holder().store());
  }

 private:
  Session& holder() { return programs_.session(held_by_); }

  const Run& run_;
  Programs programs_;
  const ProgramSpec held_by_;  ///< the program that has all of its tensors
};

Batch texts_of(int64_t step) {
  Batch batch(kSequences, kLength);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const auto at = static_cast<int64_t>(i) + step * 1000;
    batch.tokens[i] = static_cast<int32_t>(at * 31 % 61);
    batch.targets[i] = static_cast<int32_t>((at + 1) * 31 % 61);
    batch.positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % kLength);
  }
  return batch;
}

/// The half of the rows with the likeliest texts.
std::vector<bool> best_half(const std::vector<double>& log_probs) {
  std::vector<std::pair<double, size_t>> rows;
  for (size_t row = 0; row < kSequences; ++row) {
    const auto begin = log_probs.begin() + static_cast<int64_t>(row) * kLength;
    rows.push_back({std::accumulate(begin, begin + kLength, 0.0), row});
  }
  std::sort(rows.rbegin(), rows.rend());
  std::vector<bool> best(kSequences);
  for (size_t i = 0; i < kSequences / 2; ++i) {
    best[rows[i].second] = true;
  }
  return best;
}

/// Mean over targets of log p - log q: an estimate of how far p has gone from q.
double distance(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    sum += p[i] - q[i];
  }
  return sum / static_cast<double>(p.size());
}

struct History {
  std::vector<double> losses, distances;
  bool operator==(const History&) const = default;
};

/// Rounds of ranking, learning and measuring. After the third the reference is the policy of then.
History play(Model& policy, Model& reference) {
  History history;
  for (int64_t step = 1; step <= 6; ++step) {
    const Batch texts = texts_of(step);
    const std::vector<double> ranked = reference.log_probs(texts);
    history.losses.push_back(policy.learn(texts, best_half(ranked), step));
    history.distances.push_back(distance(policy.log_probs(texts), ranked));
    if (step == 3) {
      reference.become(policy);
      history.distances.push_back(distance(policy.log_probs(texts), reference.log_probs(texts)));
    }
  }
  return history;
}

TEST(Policy, LearnsTheSameOnRanksSharedWithItsReference) {
  const engine::Run policy_run = run_of({"plan.dp=4", "plan.micro_batch=2"});
  const engine::Run reference_run = run_of({"plan.dp=2", "plan.tp=2", "plan.micro_batch=2"});
  const auto apart = [&] {
    runtime::LocalRanks ranks = local_ranks(policy_run), others = local_ranks(reference_run);
    Model policy(policy_run, ranks, 3, true), reference(reference_run, others, 3, false);
    return play(policy, reference);
  };
  runtime::LocalRanks ranks = local_ranks(policy_run);
  Model policy(policy_run, ranks, 3, true), reference(reference_run, ranks, 3, false);
  const History history = play(policy, reference);
  EXPECT_TRUE(history == apart());
  ASSERT_EQ(history.losses.size(), 6u);
  EXPECT_LT(history.losses.back(), history.losses.front());
  // It leaves its reference, is at it where that has become the policy, and leaves it again.
  EXPECT_GT(history.distances[2], 0.01);
  EXPECT_NEAR(history.distances[3], 0, 1e-5);
  EXPECT_GT(history.distances[6], 0.01);
  // The ranks hold both, the reference without states.
  const program::Memory one = program::memory_of(policy.program()).at(0);
  const program::Memory other = program::memory_of(reference.program()).at(0);
  const int64_t taken = ranks.measured(0).persistent;
  EXPECT_EQ(taken, persistent_bytes(policy.program()) + persistent_bytes(reference.program()));
  EXPECT_LE(taken, one.persistent + other.persistent);
  EXPECT_GT(one.persistent, 3 * other.persistent);
}

}  // namespace
}  // namespace hocket::engine

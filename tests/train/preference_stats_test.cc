// SPDX-License-Identifier: Apache-2.0
// Means of the answers of steps, as metrics have them.
#include <gtest/gtest.h>

#include <map>

#include "train/preference.h"

namespace hocket::train {
namespace {

engine::Run run_of_objective(const std::string& objective) {
  return engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "train: {global_batch: 4, seq_len: 4}\npreference: {answers_per_sequence: 2, beta: 0.5}\n"
      "objective: " +
          objective + "\n",
      "test", {});
}

std::map<std::string, double> means_of(const PreferenceStats& stats) {
  std::map<std::string, double> means;
  for (const auto& [name, value] : stats.means()) {
    means[name] = value;
  }
  return means;
}

/// The second one of two micro-batches is padding. Logits, entropies and misses are averaged over
/// tokens, the rest over answers.
TEST(PreferenceStats, PaddingCountsNowhere) {
  const engine::Run run = run_of_objective("kto");
  engine::Batch batch(4, 4);
  batch.add_answers();
  batch.row(0).answers[1] = 0;  // desirable
  batch.row(0).answers[3] = 3;  // undesirable
  batch.row(1).answers[1] = 0;
  batch.row(1).answers[2] = 0;
  PreferenceInputs inputs{AnswerPlaces(run, 4, 2), {}, 0.75};
  inputs.places.number(batch);
  inputs.reference.assign(static_cast<size_t>(inputs.places.size()), -1);
  const std::vector<double> nowhere(inputs.reference.size(), 100);
  AnswerOutputs policy{inputs.reference, nowhere, nowhere, nowhere};
  policy.logprobs[0] = -3;
  policy.logits[0] = 0.5;
  policy.logits[1] = -0.25;
  policy.logits[2] = 2.5;  // of two tokens
  policy.entropies[0] = 0.5;
  policy.entropies[1] = 1;
  policy.entropies[2] = 2.5;
  policy.misses[0] = 0;
  policy.misses[1] = 1;
  policy.misses[2] = 2;
  PreferenceStats stats(run.config);
  stats.add(inputs, policy);
  const std::map<std::string, double> means = means_of(stats);
  EXPECT_EQ(means.at("kl"), 0.75);
  EXPECT_EQ(means.at("logps/chosen"), -2);
  EXPECT_EQ(means.at("rewards/chosen"), -0.5);
  EXPECT_EQ(means.at("rewards/rejected"), 0);
  EXPECT_EQ(means.at("logits/chosen"), 1);
  EXPECT_EQ(means.at("logits/rejected"), -0.25);
  EXPECT_EQ(means.at("entropy"), 1);
  EXPECT_DOUBLE_EQ(means.at("mean_token_accuracy"), 1.0 / 3);  // of the desirable answers
}

/// The mean is over all answers, not over the means of batches, and 0 where it is below.
TEST(Divergence, IsTheMeanOfAllAnswers) {
  Divergence all;
  EXPECT_EQ(all.value(), 0);
  all.add({3, 1});
  all.add({-1, 3});
  EXPECT_EQ(all.value(), 0.5);
  all.add({-9, 1});
  EXPECT_EQ(all.value(), 0);
}

}  // namespace
}  // namespace hocket::train

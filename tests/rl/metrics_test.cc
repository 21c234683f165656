// SPDX-License-Identifier: Apache-2.0
// Metrics under TRL's and verl's names, beside numbers worked out by their definitions.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "rl/experience.h"
#include "rl/verl_metrics.h"

namespace hocket::rl {
namespace {

std::map<std::string, double> named(const train::Values& values) {
  std::map<std::string, double> all;
  for (const auto& [name, value] : values) {
    EXPECT_TRUE(all.emplace(name, value).second) << name;
  }
  return all;
}

Sample sample_of(double reward, int64_t length, SampleStatus status = SampleStatus::completed) {
  Sample sample;
  sample.reward = reward;
  sample.rewards["exact"].score = reward;
  sample.tokens.assign(static_cast<size_t>(length), 3);
  sample.status = status;
  return sample;
}

TEST(Metrics, OfSamplesAsTrlDefinesThem) {
  std::vector<Sample> samples = {sample_of(1, 2), sample_of(0, 6, SampleStatus::truncated),
                                 sample_of(3, 4), sample_of(3, 3)};
  samples[1].rewards["exact"].score = 0;
  samples[1].rewards["exact"].details["not_applicable"] = 1;  // None: in no mean
  samples[1].left_out = true;
  const auto values = named(sample_metrics(samples, 2));
  EXPECT_NEAR(values.at("reward"), 7.0 / 3, 1e-12);
  EXPECT_NEAR(values.at("reward_std"), std::sqrt(4.0 / 3), 1e-12);  // of 1, 3 and 3 together
  EXPECT_NEAR(values.at("rewards/exact/mean"), 7.0 / 3, 1e-12);
  EXPECT_NEAR(values.at("rewards/exact/std"), std::sqrt(4.0 / 3), 1e-12);
  EXPECT_EQ(values.at("frac_reward_zero_std"), 0.5);
  EXPECT_EQ(values.at("rl/reward_std_in_group"), 0);  // the other group has one scored sample
  EXPECT_EQ(values.at("completions/mean_length"), 3.75);
  EXPECT_EQ(values.at("completions/clipped_ratio"), 0.25);
  EXPECT_EQ(values.at("completions/mean_terminated_length"), 3);
  EXPECT_EQ(values.at("completions/min_terminated_length"), 2);
  EXPECT_EQ(values.at("completions/max_terminated_length"), 4);
  const auto alone = named(sample_metrics(samples, 1));
  EXPECT_FALSE(alone.contains("frac_reward_zero_std"));
  EXPECT_FALSE(alone.contains("rl/reward_std_in_group"));
}

/// Two samples of two tokens each, with these log-probabilities of the policy before.
std::vector<LossInputs> inputs_of() {
  std::vector<LossInputs> all(2);
  all[0].old = {-1, -1};
  all[0].advantages = {2, 2};
  all[0].weights = {0.25, 0.25};
  all[1].old = {-1, -1};
  all[1].advantages = {-1, -1};
  all[1].weights = {0.25, 0.25};
  return all;
}

const std::vector<double> kUp = {-1, -1 + std::log(1.5)};                    // ratios 1 and 1.5
const std::vector<double> kDown = {-1 + std::log(0.5), -1 + std::log(4.0)};  // 0.5 and 4
const std::vector<double> kEntropies = {0.5, 1.5};

/// Deviations of equal rewards are 0, whatever the bits of their sum.
TEST(Metrics, EqualRewardsHaveNoDeviation) {
  const std::vector<Sample> samples(24, sample_of(0.3, 3));
  const auto values = named(sample_metrics(samples, 8));
  EXPECT_EQ(values.at("rl/reward_std_in_group"), 0);
  EXPECT_EQ(values.at("reward_std"), 0);
  EXPECT_EQ(values.at("rewards/exact/std"), 0);
  EXPECT_EQ(values.at("frac_reward_zero_std"), 1);
}

TEST(Metrics, OfFailedRewardsAsOfNone) {
  std::vector<Sample> samples = {sample_of(1, 2), sample_of(0, 2)};
  samples[1].left_out = samples[1].reward_failed = samples[1].rewards["exact"].failed = true;
  EXPECT_EQ(named(sample_metrics(samples, 2)).at("reward"), 1);
  EXPECT_EQ(named(sample_metrics(samples, 2)).at("rewards/exact/mean"), 1);
  samples[0].rewards["exact"].details["not_applicable"] = 1;
  samples[0].left_out = true;
  const auto values = named(sample_metrics(samples, 2));
  for (const char* name : {"reward", "reward_std", "rewards/exact/mean", "rewards/exact/std"}) {
    EXPECT_TRUE(std::isnan(values.at(name))) << name;
  }
  EXPECT_EQ(values.at("rewards/failed"), 0.5);
}

TEST(Metrics, NoneIsNotRight) {
  Sample sample = sample_of(0, 2);
  EXPECT_TRUE(is_right(sample, "exact", 0));
  sample.rewards["exact"].details["not_applicable"] = 1;
  EXPECT_FALSE(is_right(sample, "exact", 0));
}

TEST(Metrics, OfUpdatesAsTrlAndVerlDefineThem) {
  engine::RlSection section;
  section.loss = "ppo";
  section.clip_low = section.clip_high = 0.2;
  section.dual_clip = 3;
  section.kl_coef = 0.5;
  section.entropy_coef = 0.1;
  std::vector<LossInputs> inputs = inputs_of();
  for (LossInputs& one : inputs) {
    one.reference = {-1, -1};
  }
  UpdateStats stats(section);
  stats.add(inputs[0], kUp, kEntropies);
  stats.add(inputs[1], kDown, kEntropies);
  const auto values = named(stats.means());
  EXPECT_EQ(values.at("entropy"), 1);
  EXPECT_EQ(values.at("clip_ratio/low_mean"), 0.25);   // ratio 0.5, advantage -1
  EXPECT_EQ(values.at("clip_ratio/high_mean"), 0.25);  // ratio 1.5, advantage 2
  EXPECT_EQ(values.at("clip_ratio/region_mean"), 0.5);
  EXPECT_EQ(values.at("clip_ratio/low_min"), 0);  // of the first sample
  EXPECT_EQ(values.at("clip_ratio/high_max"), 0.5);
  EXPECT_EQ(values.at("actor/pg_clipfrac"), 0.5);
  EXPECT_EQ(values.at("actor/pg_clipfrac_lower"), 0.25);  // ratio 4, advantage -1
  const double k1 = -(std::log(1.5) + std::log(0.5) + std::log(4.0)) / 4;
  EXPECT_NEAR(values.at("actor/ppo_kl"), k1, 1e-12);
  // -2, -2 * 1.2 clipped, 0.8 clipped, and 3 by the dual clip.
  EXPECT_NEAR(values.at("actor/pg_loss"), (-2 - 2.4 + 0.8 + 3) / 4, 1e-12);
  EXPECT_NEAR(values.at("actor/entropy"), 1, 1e-12);
  const double k3 =
      (1 / 1.5 - 1 + std::log(1.5) + 2 - 1 + std::log(0.5) + 0.25 - 1 + std::log(4.0)) / 4;
  EXPECT_NEAR(values.at("kl"), k3, 1e-12);
  EXPECT_NEAR(values.at("actor/kl_loss"), k3, 1e-12);
  EXPECT_EQ(values.at("actor/kl_coef"), 0.5);
  EXPECT_NEAR(stats.loss(), values.at("actor/pg_loss") + 0.5 * k3 - 0.1, 1e-12);
}

TEST(Metrics, OfAggregationsAndSamplesLeftOut) {
  engine::RlSection section;
  section.loss = "ppo";
  std::vector<LossInputs> inputs = inputs_of();
  inputs[0].weights = {0.5, 0};  // the second token is left out
  inputs[1].weights = {0, 0};    // so is the whole sample
  UpdateStats stats(section);
  stats.add(inputs[0], kUp, kEntropies);
  stats.add(inputs[1], kDown, kEntropies);
  const auto values = named(stats.means());
  EXPECT_EQ(values.at("entropy"), 0.5);
  EXPECT_EQ(values.at("actor/entropy"), 0.25);
  EXPECT_EQ(values.at("actor/pg_loss"), -1);
  EXPECT_EQ(values.at("clip_ratio/region_mean"), 0);
  EXPECT_FALSE(values.contains("kl"));
}

TEST(Metrics, FactorsOfTisAreInTheLossAlone) {
  engine::RlSection section;
  section.loss = "ppo";
  std::vector<LossInputs> inputs = inputs_of();
  inputs[0].factors = {2, 0.5};
  UpdateStats stats(section);
  stats.add(inputs[0], {{-1, -1}}, kEntropies);
  EXPECT_EQ(named(stats.means()).at("actor/pg_loss"), -2 * (2 + 0.5) / 4);
  EXPECT_EQ(inputs[0].advantages, (std::vector<double>{2, 2}));
}

TEST(Metrics, NothingTrainedIsNoNumber) {
  engine::RlSection section;
  section.kl_coef = 0.5;
  for (const char* loss : {"ppo", "gspo"}) {
    section.loss = loss;
    const UpdateStats stats(section);
    EXPECT_TRUE(std::isnan(stats.loss()));
    for (const auto& [name, value] : stats.means()) {
      EXPECT_TRUE(std::isnan(value)) << name;
    }
  }
}

TEST(Metrics, GspoClipsSamples) {
  engine::RlSection section;
  section.loss = "gspo";
  section.clip_low = section.clip_high = 0.1;
  const std::vector<LossInputs> inputs = inputs_of();
  UpdateStats stats(section);
  stats.add(inputs[0], kUp, kEntropies);  // sqrt(1.5) is above 1.1
  stats.add(inputs[1], {{-1, -1}}, kEntropies);
  const auto values = named(stats.means());
  EXPECT_EQ(values.at("clip_ratio/high_mean"), 0.5);
  EXPECT_EQ(values.at("clip_ratio/high_max"), 1);
  EXPECT_EQ(values.at("clip_ratio/low_min"), 0);
  EXPECT_NEAR(values.at("actor/pg_loss"), (-2 * 1.1 + 1) / 2, 1e-12);
}

TEST(Metrics, DifferencesOfProbabilities) {
  Mismatch mismatch;
  EXPECT_TRUE(mismatch.values().empty());
  mismatch.all_tokens = 4;
  mismatch.add(std::vector{std::log(0.5), std::log(0.25)},
               std::vector{std::log(0.5), std::log(0.5)});
  const auto values = named(mismatch.values());
  EXPECT_EQ(values.at("training/rollout_probs_diff_max"), 0.25);
  EXPECT_EQ(values.at("training/rollout_probs_diff_mean"), 0.125);
  EXPECT_NEAR(values.at("training/rollout_probs_diff_std"), std::sqrt(0.03125), 1e-12);
  EXPECT_NEAR(values.at("sampling/sampling_logp_difference/max"), std::log(2.0), 1e-12);
  EXPECT_EQ(values.at("rl/compared_share"), 0.5);
  EXPECT_EQ(mismatch.text(), "up to 0.69 in 1 of 2 tokens compared of 4");
  Mismatch none;
  none.all_tokens = 2;
  none.add(std::vector{-1.0, -2.0}, std::vector{-1.0, -2.0});
  EXPECT_EQ(none.text(), "0 in all of 2 tokens");
  none.all_tokens = 3;
  EXPECT_EQ(none.text(), "0 in all of 2 tokens compared of 3");
}

TEST(Metrics, OfAStepAsVerlDefinesThem) {
  engine::RlSection section;
  section.advantage = "gae";
  section.max_new_tokens = 2;
  section.kl_coef = 0.5;
  section.kl_in = "reward";
  section.kl_estimator = "k1";
  std::vector<LossInputs> inputs = inputs_of();
  const std::vector<Sample> samples = {sample_of(1, 2), sample_of(0, 2, SampleStatus::truncated)};
  Prompt prompt;
  prompt.ids = {1, 2, 3};
  std::vector<Item> items;
  for (size_t i = 0; i < 2; ++i) {
    inputs[i].reward = i == 0 ? 1 : -0.5;
    inputs[i].reference = {-1, -2};
    inputs[i].values = {0, 1};
    inputs[i].returns = {1, i == 0 ? 1.0 : -1.0};
    items.push_back({&prompt, &samples[i], &inputs[i]});
  }
  const auto values = named(verl_metrics(section, items));
  EXPECT_EQ(values.at("critic/score/mean"), 0.25);
  EXPECT_EQ(values.at("critic/score/max"), 1);
  EXPECT_EQ(values.at("critic/score/min"), -0.5);
  EXPECT_EQ(values.at("critic/rewards/mean"), -0.25);  // less half of a divergence of 1
  EXPECT_EQ(values.at("critic/advantages/mean"), 0.5);
  EXPECT_EQ(values.at("critic/returns/mean"), 0.5);
  EXPECT_EQ(values.at("critic/values/mean"), 0.5);
  // Errors 1, 0, 1 and -2 of variance 2; returns 1, 1, 1 and -1 of variance 1.
  EXPECT_NEAR(values.at("critic/vf_explained_var"), 1 - 2 / (1 + 1e-5), 1e-12);
  EXPECT_EQ(values.at("response_length/mean"), 2);
  EXPECT_EQ(values.at("response_length/clip_ratio"), 1);  // of the longest length, ended or not
  EXPECT_EQ(values.at("response/aborted_ratio"), 0);
  EXPECT_EQ(values.at("prompt_length/max"), 3);
  // A sample whose reward failed, and a token that mis left out, do not count.
  inputs[1].scored = inputs[1].counts = false;
  inputs[0].weights = {1, 0};
  inputs[0].returns = {1, 7};
  const auto fewer = named(verl_metrics(section, items));
  EXPECT_EQ(fewer.at("critic/score/mean"), 1);
  EXPECT_EQ(fewer.at("critic/returns/mean"), 1);
  inputs[0].scored = inputs[0].counts = false;
  const auto nothing = named(verl_metrics(section, items));
  for (const char* name : {"critic/score/mean", "critic/rewards/max", "critic/advantages/min",
                           "critic/values/mean", "critic/vf_explained_var"}) {
    EXPECT_TRUE(std::isnan(nothing.at(name))) << name;
  }
  EXPECT_EQ(nothing.at("response_length/mean"), 2);
}

}  // namespace
}  // namespace hocket::rl

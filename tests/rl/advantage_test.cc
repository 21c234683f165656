// SPDX-License-Identifier: Apache-2.0
// Advantages, corrections and weights against verl's functions, and against numbers made by hand.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "tests/rl/loss_fixture.h"

namespace hocket::rl {
namespace {

using nlohmann::json;

/// Expects equal advantages and returns of the tokens that train.
void expect_advantages(const std::vector<LossInputs>& loss_inputs, const json& want,
                       const fixture::Precision& precision) {
  const auto compare = [&](std::vector<double> LossInputs::*member, const char* name) {
    std::vector<double> got, expected;
    const std::vector<double> all = fixture::numbers(want.at(name));
    size_t at = 0;
    for (const LossInputs& inputs : loss_inputs) {
      for (size_t t = 0; t < inputs.old.size(); ++t, ++at) {
        if (!inputs.trains(t)) continue;
        got.push_back((inputs.*member)[t]);
        expected.push_back(all.at(at));
      }
    }
    EXPECT_GT(got.size(), 2u);
    fixture::expect_near(got, expected, precision, name);
  };
  compare(&LossInputs::advantages, "advantages");
  if (want.contains("returns")) {
    compare(&LossInputs::returns, "returns");
  }
}

TEST(RlAdvantages, EqualThoseOfVerl) {
  int cases = 0;
  for (const json& test : fixture::all().at("verl").at("advantages")) {
    engine::RlSection section;
    section.advantage = fixture::text(test, "advantage");
    section.gamma = test.at("gamma");
    section.lambda = test.at("lambda");
    section.lambda_length = test.at("lambda_length");
    if (fixture::text(test, "kl") != "none") {
      section.kl_in = "reward";
      section.kl_coef = test.at("kl_coef");
      section.kl_estimator = fixture::text(test, "kl");
    }
    std::vector<LossInputs> loss_inputs =
        fixture::loss_inputs(fixture::batch(test), test.at("masked").get<bool>());
    set_advantages(section, loss_inputs);
    for (const fixture::Precision& precision : fixture::kPrecisions) {
      SCOPED_TRACE(fixture::text(test, "batch") + " " + section.advantage + " kl " +
                   fixture::text(test, "kl") + " " + precision.name);
      expect_advantages(loss_inputs, test.at(precision.name), precision);
      ++cases;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(cases, 80);
}

TEST(RlCorrection, MatchesVerl) {
  int advantages = 0;
  for (const json& test : fixture::all().at("verl").at("corrections")) {
    engine::RlSection section;
    section.correction.type = fixture::text(test, "type");
    section.correction.level = fixture::text(test, "level");
    section.correction.low = test.at("low");
    section.correction.high = test.at("high");
    const bool truncates = section.correction.type == "tis";
    std::vector<LossInputs> loss_inputs = fixture::loss_inputs(fixture::batch(test), false);
    const CorrectionStats stats = apply_correction(section, loss_inputs);
    for (const fixture::Precision& precision : fixture::kPrecisions) {
      const json& want = test.at(precision.name);
      SCOPED_TRACE(fixture::text(test, "batch") + " " + section.correction.type + " " +
                   section.correction.level + " " + precision.name);
      const std::vector<double> weights = fixture::numbers(want.at("weights"));
      fixture::expect_near(
          fixture::joined(loss_inputs, truncates ? &LossInputs::factors : &LossInputs::weights),
          weights, precision, "weight");
      if (want.contains("advantages")) {  // made of the tokens that the correction left
        section.advantage = "gae";
        section.gamma = 0.9;
        section.lambda = 0.8;
        set_advantages(section, loss_inputs);
        expect_advantages(loss_inputs, want, precision);
        ++advantages;
      }
      const double zeros = static_cast<double>(std::count(weights.begin(), weights.end(), 0.0));
      EXPECT_NEAR(stats.left_out, truncates ? 0 : zeros / static_cast<double>(weights.size()),
                  1e-12);
      // verl divides by its count and 1e-8, and limits no ratio of this figure.
      if (fixture::text(test, "batch") != "holes") {
        EXPECT_NEAR(stats.kl, want.at("kl").get<double>(), 1e-5 * (1 + stats.kl));
      }
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(advantages, 4);
}

LossInputs inputs_of(int64_t group, double reward, size_t tokens) {
  LossInputs inputs;
  inputs.group = group;
  inputs.reward = reward;
  inputs.old.assign(tokens, -1);
  inputs.rollout.assign(tokens, -1);
  return inputs;
}

TEST(RlAdvantages, SamplesThatDoNotCountStayInTheirGroup) {
  engine::RlSection section;
  section.advantage = "dr_grpo";
  std::vector<LossInputs> loss_inputs{inputs_of(0, 1, 2), inputs_of(0, 0, 3), inputs_of(0, 0, 0),
                                      inputs_of(1, 4, 1)};
  loss_inputs[1].counts = false;
  set_advantages(section, loss_inputs);
  EXPECT_EQ(loss_inputs[0].advantages, std::vector<double>(2, 1 - 1.0 / 3));
  EXPECT_EQ(loss_inputs[1].advantages, std::vector<double>(3, -1.0 / 3));
  EXPECT_EQ(loss_inputs[2].advantages, std::vector<double>());
  EXPECT_EQ(loss_inputs[3].advantages, std::vector<double>(1, 4));
  section.aggregation = "token-mean";
  EXPECT_TRUE(set_weights(section, loss_inputs, 0, 4));
  EXPECT_EQ(loss_inputs[0].weights, std::vector<double>(2, 1.0 / 3));
  EXPECT_EQ(loss_inputs[1].weights, std::vector<double>(3, 0));
  EXPECT_EQ(loss_inputs[3].weights, std::vector<double>(1, 1.0 / 3));
  section.advantage = "reinforce";
  set_advantages(section, loss_inputs);
  EXPECT_EQ(loss_inputs[3].advantages, std::vector<double>(1, 4));
  // Whitened over tokens that count.
  section.advantage = "reinforce_plus_plus";
  set_advantages(section, loss_inputs);
  EXPECT_NEAR(
      loss_inputs[0].advantages[0] + loss_inputs[0].advantages[1] + loss_inputs[3].advantages[0], 0,
      1e-7);
}

/// The weights of an update depend on all of its samples, and on nothing else.
TEST(RlWeights, AreMeansOverTheWholeUpdate) {
  engine::RlSection section;
  section.max_new_tokens = 10;
  section.samples_in_mean = "trained";
  std::vector<LossInputs> loss_inputs{inputs_of(0, 1, 2), inputs_of(0, 0, 4), inputs_of(1, 0, 1),
                                      inputs_of(1, 0, 0)};
  loss_inputs[1].weights = {1, 0, 1, 1};  // by mis
  loss_inputs[2].weights = {0};
  const std::map<std::string, std::vector<double>> want{{"token-mean", {0.2, 0.2}},
                                                        {"token-sum", {1, 1}},
                                                        {"seq-mean-token-sum", {0.5, 0.5}},
                                                        {"seq-mean-token-sum-norm", {0.05, 0.05}},
                                                        {"seq-mean-token-mean", {0.25, 1.0 / 6}}};
  for (const auto& [mode, weights] : want) {
    section.aggregation = mode;
    for (int times : {1, 2}) {  // again for the next epoch
      EXPECT_TRUE(set_weights(section, loss_inputs, 0, 4));
      EXPECT_NEAR(loss_inputs[0].weights[0], weights[0], 1e-15) << mode << times;
      EXPECT_NEAR(loss_inputs[1].weights[3], weights[1], 1e-15) << mode << times;
      EXPECT_EQ(loss_inputs[1].weights[1], 0);
      EXPECT_EQ(loss_inputs[2].weights, std::vector<double>{0});
      EXPECT_TRUE(loss_inputs[3].weights.empty());
    }
  }
  section.horizon = 5;
  section.aggregation = "seq-mean-token-sum-norm";
  set_weights(section, loss_inputs, 0, 4);
  EXPECT_NEAR(loss_inputs[0].weights[0], 0.1, 1e-12);
  section.samples_in_mean = "all";
  set_weights(section, loss_inputs, 0, 4);
  EXPECT_NEAR(loss_inputs[0].weights[0], 0.05, 1e-12);
  std::vector<LossInputs> none{inputs_of(0, 1, 2)};
  none[0].counts = false;
  EXPECT_FALSE(set_weights(section, none, 0, 1));
  EXPECT_EQ(none[0].weights, std::vector<double>(2, 0));
}

/// With tokens_in_mean: step an update divides by its share of the step's tokens.
TEST(RlWeights, MayCountTheTokensOfTheStep) {
  engine::RlSection section;
  section.aggregation = "token-mean";
  section.tokens_in_mean = "step";
  std::vector<LossInputs> loss_inputs{inputs_of(0, 1, 2), inputs_of(0, 0, 4), inputs_of(1, 0, 1),
                                      inputs_of(1, 0, 3)};
  loss_inputs[3].counts = false;
  for (int times : {1, 2}) {
    set_weights(section, loss_inputs, 0, 2);
    set_weights(section, loss_inputs, 2, 4);
    EXPECT_EQ(loss_inputs[0].weights, std::vector<double>(2, 1 / 3.5)) << times;
    EXPECT_EQ(loss_inputs[2].weights, std::vector<double>{1 / 3.5}) << times;
    EXPECT_EQ(loss_inputs[3].weights, std::vector<double>(3, 0)) << times;
  }
}

/// Samples whose reward failed change nothing of the others, as in TRL's nanmean and nanstd.
TEST(RlAdvantages, FailedRewardsAreLeftOutOfGroups) {
  engine::RlSection section;
  for (const char* estimator : {"grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"}) {
    section.advantage = estimator;
    std::vector<LossInputs> fewer{inputs_of(0, 1, 2), inputs_of(0, 0.25, 3), inputs_of(0, 0, 1)};
    std::vector<LossInputs> more = fewer;
    more.insert(more.begin() + 1, inputs_of(0, -7, 2));
    more[1].scored = more[1].counts = false;
    set_advantages(section, fewer);
    set_advantages(section, more);
    EXPECT_EQ(more[0].advantages, fewer[0].advantages) << estimator;
    EXPECT_EQ(more[2].advantages, fewer[1].advantages) << estimator;
    EXPECT_EQ(more[3].advantages, fewer[2].advantages) << estimator;
    if (section.whitens()) continue;
    EXPECT_EQ(more[1].advantages, std::vector<double>(2, 0)) << estimator;
    more[2].scored = more[2].counts = more[3].scored = more[3].counts = false;
    set_advantages(section, more);  // one alone is compared with itself
    EXPECT_EQ(more[0].advantages, std::vector<double>(2, 0)) << estimator;
  }
}

/// Tokens that do not train are passed over: later rewards and values come before them.
TEST(RlAdvantages, SumsPassOverTokensThatDoNotTrain) {
  engine::RlSection section;
  section.advantage = "reinforce_plus_plus";
  section.gamma = 0.5;
  std::vector<LossInputs> masked{inputs_of(0, 1, 4), inputs_of(0, -1, 2)}, without = masked;
  masked[0].weights = {1, 0, 0, 1};
  without[0] = inputs_of(0, 1, 2);
  set_advantages(section, masked);
  set_advantages(section, without);
  EXPECT_EQ(masked[0].advantages[0], without[0].advantages[0]);
  EXPECT_EQ(masked[0].advantages[3], without[0].advantages[1]);
  EXPECT_EQ(masked[1].advantages, without[1].advantages);
  EXPECT_NE(masked[0].advantages[0], masked[0].advantages[3]);
}

TEST(RlCorrection, CapsOrMasksRatiosAndCountsThem) {
  engine::RlSection section;
  std::vector<LossInputs> loss_inputs{inputs_of(0, 1, 2), inputs_of(0, 0, 2)};
  loss_inputs[0].old = {-1, -1 + std::log(3)};
  const CorrectionStats none = apply_correction(section, loss_inputs);
  EXPECT_NEAR(none.mean_ratio, 1.5, 1e-12);
  EXPECT_NEAR(none.max_ratio, 3, 1e-12);
  EXPECT_NEAR(none.kl, (2 - std::log(3)) / 4, 1e-12);
  EXPECT_TRUE(loss_inputs[0].factors.empty());
  EXPECT_TRUE(loss_inputs[0].weights.empty());
  section.correction.type = "tis";
  const CorrectionStats tis = apply_correction(section, loss_inputs);
  EXPECT_EQ(tis.cut_off, 0.25);
  EXPECT_EQ(loss_inputs[0].factors, (std::vector<double>{1, 2}));
  EXPECT_EQ(loss_inputs[1].factors, (std::vector<double>{1, 1}));
  section.advantage = "reinforce";
  set_advantages(section, loss_inputs);
  EXPECT_EQ(loss_inputs[0].advantages, (std::vector<double>{1, 1}));
  EXPECT_EQ(loss_inputs[0].loss_advantage(0), 1);
  EXPECT_EQ(loss_inputs[0].loss_advantage(1), 2);
  section.correction.level = "geometric";
  apply_correction(section, loss_inputs);
  EXPECT_NEAR(loss_inputs[0].factors[0], std::sqrt(3), 1e-12);
  EXPECT_NEAR(loss_inputs[0].factors[1], std::sqrt(3), 1e-12);
  section.correction.type = "mis";
  section.correction.level = "token";
  const CorrectionStats mis = apply_correction(section, loss_inputs);
  EXPECT_EQ(mis.left_out, 0.25);
  EXPECT_EQ(loss_inputs[0].weights, (std::vector<double>{1, 0}));
  EXPECT_EQ(loss_inputs[1].weights, (std::vector<double>{1, 1}));
  section.correction.low = 0;  // no lower bound
  loss_inputs[1].old = {-90, -1};
  apply_correction(section, loss_inputs);
  EXPECT_EQ(loss_inputs[1].weights, (std::vector<double>{1, 1}));
  loss_inputs[0].counts = loss_inputs[1].counts = false;
  const CorrectionStats nothing = apply_correction(section, loss_inputs);
  EXPECT_TRUE(std::isnan(nothing.mean_ratio) && std::isnan(nothing.left_out));
}

TEST(RlAdvantages, NamesWhatIsMissing) {
  engine::RlSection section;
  std::vector<LossInputs> loss_inputs{inputs_of(0, 1, 2)};
  section.advantage = "gae";
  EXPECT_THROW(set_advantages(section, loss_inputs), Error);
  section.advantage = "grpo";
  section.kl_in = "reward";
  section.kl_coef = 0.1;
  EXPECT_THROW(set_advantages(section, loss_inputs), Error);
  section.kl_in = "loss";
  EXPECT_NO_THROW(set_advantages(section, loss_inputs));
  section.advantage = "reinforce_plus_plus";
  loss_inputs[0] = inputs_of(0, 1, 1);
  EXPECT_THROW(set_advantages(section, loss_inputs), Error);  // one token has no variance
  loss_inputs[0].rollout.clear();
  section.correction.type = "tis";
  EXPECT_THROW(apply_correction(section, loss_inputs), Error);
}

/// DAPO's example: 16384 tokens and a buffer of 4096 behind them.
TEST(RlAdvantages, LongSamplesArePenalised) {
  engine::OverlongSection overlong;
  EXPECT_EQ(length_penalty(overlong, 100, 100), 0);
  overlong.buffer = 4096;
  const int64_t longest = 20480;
  EXPECT_EQ(length_penalty(overlong, 1, longest), 0);
  EXPECT_EQ(length_penalty(overlong, 16384, longest), 0);
  EXPECT_EQ(length_penalty(overlong, 18432, longest), -0.5);
  EXPECT_EQ(length_penalty(overlong, 20480, longest), -1);
  EXPECT_EQ(length_penalty(overlong, 30000, longest), -1);
  overlong.penalty = 0.5;
  EXPECT_EQ(length_penalty(overlong, 18432, longest), -0.25);
}

double choose(int64_t n, int64_t k) {
  double ways = 1;
  for (int64_t i = 0; i < k; ++i) {
    ways *= static_cast<double>(n - i) / static_cast<double>(i + 1);
  }
  return k > n ? 0 : ways;
}

TEST(RlAdvantages, PassAtKMatchesItsDefinition) {
  for (int64_t n = 1; n <= 12; ++n) {
    for (int64_t c = 0; c <= n; ++c) {
      for (int64_t k = 1; k <= n; ++k) {
        EXPECT_NEAR(pass_at(k, n, c), 1 - choose(n - c, k) / choose(n, k), 1e-12);
      }
    }
  }
  EXPECT_NEAR(pass_at(100, 100000, 1000), 1 - std::exp(100 * std::log(0.99)), 1e-3);
  EXPECT_THROW(pass_at(3, 2, 1), Error);
  EXPECT_THROW(pass_at(1, 2, 3), Error);
}

TEST(RlAdvantages, SamplesWithoutAGroupAreNamed) {
  engine::RlSection section;
  section.samples_per_prompt = 1;
  for (const char* of_groups : {"grpo", "dr_grpo", "reinforce_plus_plus_baseline"}) {
    section.advantage = of_groups;
    EXPECT_NE(advantage_warning(section).find(of_groups), std::string::npos);
  }
  for (const char* alone : {"reinforce", "reinforce_plus_plus", "gae"}) {
    section.advantage = alone;
    EXPECT_EQ(advantage_warning(section), "");
  }
  section.advantage = "grpo";
  section.samples_per_prompt = 2;
  EXPECT_EQ(advantage_warning(section), "");
}

}  // namespace
}  // namespace hocket::rl

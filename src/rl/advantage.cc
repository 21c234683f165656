// SPDX-License-Identifier: Apache-2.0
#include "rl/advantage.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "rl/divergence.h"

namespace hocket::rl {

using engine::RlSection;

namespace {

// Small numbers beside divisors, as verl's core_algos.py and torch_functional.py have them.
constexpr double kBesideDeviation = 1e-6, kBesideCount = 1e-8, kBesideVariance = 1e-8;

/// Mean, unbiased deviation and size of a group's scores; of a group of one 0, 1 and 1.
struct Spread {
  double mean = 0, deviation = 1;
  int64_t count = 0;
};

/// `scores`: of those of a group's samples that are scored.
Spread spread_of(std::span<const double> scores, size_t group_size) {
  Spread spread{.count = std::ssize(scores)};
  if (spread.count < 2) {
    // One that the others left alone is compared with itself.
    spread.mean = spread.count == 1 && group_size > 1 ? scores[0] : 0;
    return spread;
  }
  double sum = 0, squares = 0;
  for (const double score : scores) {
    sum += score;
  }
  spread.mean = sum / static_cast<double>(spread.count);
  for (const double score : scores) {
    squares += (score - spread.mean) * (score - spread.mean);
  }
  spread.deviation = std::sqrt(squares / static_cast<double>(spread.count - 1));
  return spread;
}

void want_length(const char* what, const std::vector<double>& got, const LossInputs& inputs) {
  if (got.size() != inputs.old.size()) {
    fail("rl.advantage", "{} {} of a sample of {} tokens", got.size(), what, inputs.old.size());
  }
}

/// Returns the reward of every token: that of the sample at its last one, less the divergence.
std::vector<double> token_rewards(const RlSection& section, const LossInputs& inputs) {
  std::vector<double> rewards(inputs.old.size());
  if (section.kl_in == "reward" && section.kl_coef != 0) {
    want_length("log-probabilities of the reference", inputs.reference, inputs);
    for (size_t t = 0; t < rewards.size(); ++t) {
      rewards[t] -=
          section.kl_coef * divergence(section.kl_estimator, inputs.old[t] - inputs.reference[t]);
    }
  }
  if (!rewards.empty()) {
    rewards.back() += inputs.reward;
  }
  return rewards;
}

double sum_of(std::span<const double> numbers) {
  double sum = 0;
  for (const double x : numbers) {
    sum += x;
  }
  return sum;
}

/// Returns the advantage of a sample's score in its group.
double outcome(const std::string& estimator, double score, const Spread& group) {
  if (estimator == "grpo") return (score - group.mean) / (group.deviation + kBesideDeviation);
  if (estimator == "rloo") {
    if (group.count < 2) return score - group.mean;
    const double n = static_cast<double>(group.count);
    return (score - group.mean) * (n / (n - 1));
  }
  if (estimator == "reinforce") return score;
  return score - group.mean;  // dr_grpo, reinforce_plus_plus_baseline
}

/// Gives all tokens of a sample the advantage of its score.
void set_outcomes(const RlSection& section, std::span<LossInputs> loss_inputs) {
  for (size_t begin = 0, end; begin < loss_inputs.size(); begin = end) {
    std::vector<double> scores, scored;
    for (end = begin;
         end < loss_inputs.size() && loss_inputs[end].group == loss_inputs[begin].group; ++end) {
      // The reward of a sample without tokens is one of its group all the same.
      const LossInputs& inputs = loss_inputs[end];
      scores.push_back(inputs.old.empty() ? inputs.reward : sum_of(token_rewards(section, inputs)));
      if (inputs.scored) {
        scored.push_back(scores.back());
      }
    }
    const Spread group = spread_of(scored, scores.size());
    for (size_t i = begin; i < end; ++i) {
      const double advantage =
          loss_inputs[i].scored ? outcome(section.advantage, scores[i - begin], group) : 0;
      loss_inputs[i].advantages.assign(loss_inputs[i].old.size(), advantage);
    }
  }
}

/// Returns whether a token is one of the sums over later tokens.
bool is_in_sums(const LossInputs& inputs, size_t t) {
  return inputs.weights.empty() || inputs.weights[t] != 0;
}

/// Sets advantages to the discounted sums of a sample's later rewards (arXiv 2501.03262).
void set_discounted(const RlSection& section, LossInputs& inputs) {
  inputs.advantages = token_rewards(section, inputs);
  double later = 0;
  for (size_t t = inputs.advantages.size(); t-- > 0;) {
    if (is_in_sums(inputs, t)) {
      later = inputs.advantages[t] + section.gamma * later;
    }
    inputs.advantages[t] = later;
  }
}

/// Generalized advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16).
void set_generalized(const RlSection& section, LossInputs& inputs) {
  want_length("values", inputs.values, inputs);
  const std::vector<double> rewards = token_rewards(section, inputs);
  const auto n = std::ssize(rewards);
  const double lambda =
      section.lambda_length > 0
          ? std::max(0.0, 1 - 1 / (section.lambda_length * static_cast<double>(n)))
          : section.lambda;
  inputs.advantages.assign(rewards.size(), 0);
  inputs.returns.assign(rewards.size(), 0);
  double next_value = 0, next_advantage = 0;
  for (size_t t = rewards.size(); t-- > 0;) {
    if (is_in_sums(inputs, t)) {
      const double error = rewards[t] + section.gamma * next_value - inputs.values[t];
      next_advantage = error + section.gamma * lambda * next_advantage;
      next_value = inputs.values[t];
    }
    inputs.advantages[t] = next_advantage;
    inputs.returns[t] = next_advantage + inputs.values[t];
  }
}

/// Makes the advantages of all tokens that count have mean 0 and variance 1.
void whiten(const std::string& estimator, std::span<LossInputs> loss_inputs) {
  double count = 0, sum = 0, squares = 0;
  const auto each = [&](const auto& visit) {
    for (const LossInputs& inputs : loss_inputs) {
      for (size_t t = 0; t < inputs.advantages.size(); ++t) {
        if (inputs.trains(t)) {
          visit(inputs.advantages[t]);
        }
      }
    }
  };
  each([&](double advantage) {
    sum += advantage;
    ++count;
  });
  if (count == 0) return;
  if (count == 1) {
    fail_run("rl.advantage",
             "{} divides by the deviation of advantages over the tokens of a step, and one token "
             "alone counts in this step; expected 2 or more; try more rl.prompts_per_step, "
             "samples_per_prompt or max_new_tokens",
             estimator);
  }
  const double mean = sum / (count + kBesideCount);
  each([&](double advantage) { squares += (advantage - mean) * (advantage - mean); });
  const double variance = squares / (count + kBesideCount) * (count / (count - 1));
  const double factor = 1 / std::sqrt(variance + kBesideVariance);
  for (LossInputs& inputs : loss_inputs) {
    for (double& advantage : inputs.advantages) {
      advantage = (advantage - mean) * factor;
    }
  }
}

}  // namespace

std::string advantage_warning(const RlSection& section) {
  const std::string& estimator = section.advantage;
  const bool compares =
      estimator == "grpo" || estimator == "dr_grpo" || estimator == "reinforce_plus_plus_baseline";
  if (!compares || section.samples_per_prompt > 1) return "";
  return fmt::format(
      "rl.advantage is {}, and rl.samples_per_prompt 1: a sample alone is compared with no other, "
      "and its advantage is its reward; expected 2 or more, or rl.advantage: reinforce",
      estimator);
}

void set_advantages(const RlSection& section, std::span<LossInputs> loss_inputs) {
  const std::string& estimator = section.advantage;
  if (estimator == "gae") {
    for (LossInputs& inputs : loss_inputs) {
      set_generalized(section, inputs);
    }
  } else if (estimator == "reinforce_plus_plus") {
    for (LossInputs& inputs : loss_inputs) {
      set_discounted(section, inputs);
    }
  } else {
    set_outcomes(section, loss_inputs);
  }
  if (section.whitens()) {
    whiten(estimator, loss_inputs);
  }
}

namespace {

/// Returns the tokens of a sample that train.
double trained_tokens(const LossInputs& inputs) {
  double tokens = 0;
  for (size_t t = 0; t < inputs.old.size(); ++t) {
    tokens += inputs.trains(t) ? 1 : 0;
  }
  return tokens;
}

double trained_tokens(std::span<const LossInputs> loss_inputs) {
  double tokens = 0;
  for (const LossInputs& inputs : loss_inputs) {
    tokens += trained_tokens(inputs);
  }
  return tokens;
}

/// Returns the number of samples that means over an update's samples divide by.
double samples_in_mean(const RlSection& section, std::span<const LossInputs> update) {
  if (section.samples_in_mean == "all") return static_cast<double>(update.size());
  return static_cast<double>(std::count_if(
      update.begin(), update.end(), [](const auto& inputs) { return trained_tokens(inputs) > 0; }));
}

}  // namespace

bool set_weights(const RlSection& section, std::span<LossInputs> step, size_t begin, size_t end) {
  const std::span<LossInputs> update = step.subspan(begin, end - begin);
  for (LossInputs& inputs : update) {
    if (inputs.weights.empty()) {
      inputs.weights.assign(inputs.old.size(), 1);
    }
    want_length("weights", inputs.weights, inputs);
  }
  const double trained = trained_tokens(update), samples = samples_in_mean(section, update);
  double tokens = trained;
  if (section.tokens_in_mean == "step") {
    tokens = trained_tokens(step) * static_cast<double>(update.size()) /
             static_cast<double>(step.size());
  }
  const std::string& mode = section.aggregation;
  const double horizon =
      static_cast<double>(section.horizon > 0 ? section.horizon : section.max_new_tokens);
  for (LossInputs& inputs : update) {
    const double n = trained_tokens(inputs);
    double weight = 0;
    if (n > 0) {
      weight = mode == "token-sum"                 ? 1
               : mode == "seq-mean-token-sum"      ? 1 / samples
               : mode == "seq-mean-token-sum-norm" ? 1 / samples / horizon
               : mode == "seq-mean-token-mean"     ? 1 / n / samples
                                                   : 1 / tokens;
    }
    for (double& w : inputs.weights) {
      w = w == 0 ? 0 : weight;
    }
  }
  return trained > 0;
}

double length_penalty(const engine::OverlongSection& overlong, int64_t length, int64_t longest) {
  if (overlong.buffer <= 0) return 0;
  const int64_t beyond = length - (longest - overlong.buffer);
  const double share = static_cast<double>(beyond) / static_cast<double>(overlong.buffer);
  return -overlong.penalty * std::clamp(share, 0.0, 1.0);
}

double pass_at(int64_t k, int64_t n, int64_t c) {
  if (k < 1 || k > n || c < 0 || c > n) {
    fail("rl.pass_at", "k={} of n={} samples with c={} right; expected 1 <= k <= n and 0 <= c <= n",
         k, n, c);
  }
  if (n - c < k) return 1;
  double none = 1;  // probability that none of k is right
  for (int64_t i = n - c + 1; i <= n; ++i) {
    none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  }
  return 1 - none;
}

}  // namespace hocket::rl

// SPDX-License-Identifier: Apache-2.0
#include "rl/verl_metrics.h"

#include <fmt/format.h>

#include <string>

#include "rl/divergence.h"
#include "rl/experience.h"
#include "rl/moments.h"

namespace hocket::rl {

namespace {

constexpr double kBesideReturns = 1e-5;  // verl's, in vf_explained_var

/// Adds mean and extremes under the names of a metric.
void put(const Moments& moments, const std::string& name, train::Values* values) {
  const bool any = moments.n > 0;
  values->insert(values->end(), {{name + "/mean", moments.mean()},
                                 {name + "/max", any ? moments.most : kNothing},
                                 {name + "/min", any ? moments.least : kNothing}});
}

/// Returns the sum of a sample's rewards by token, less the divergence from the reference.
double rewards_of(const engine::RlSection& section, const LossInputs& inputs) {
  double sum = inputs.reward;
  if (section.kl_in != "reward" || inputs.reference.empty()) return sum;
  for (size_t t = 0; t < inputs.old.size(); ++t) {
    sum -= section.kl_coef * divergence(section.kl_estimator, inputs.old[t] - inputs.reference[t]);
  }
  return sum;
}

}  // namespace

train::Values verl_metrics(const engine::RlSection& section, std::span<const Item> items) {
  Moments scores, rewards, advantages, returns, values, errors, lengths, prompts, full, empty;
  for (const Item& item : items) {
    const LossInputs& inputs = *item.inputs;
    const int64_t length = std::ssize(item.sample->tokens);
    lengths.add(static_cast<double>(length));
    full.add(length == section.max_new_tokens ? 1 : 0);
    empty.add(length == 0 ? 1 : 0);
    prompts.add(static_cast<double>(item.prompt->ids.size()));
    if (length == 0) continue;  // verl's aborted samples
    if (inputs.scored) {
      scores.add(inputs.reward);
      rewards.add(rewards_of(section, inputs));
    }
    for (size_t t = 0; t < inputs.advantages.size(); ++t) {
      if (!inputs.trains(t)) continue;
      // Without a critic verl's returns are its advantages.
      const double target = inputs.returns.empty() ? inputs.advantages[t] : inputs.returns[t];
      advantages.add(inputs.advantages[t]);
      returns.add(target);
      if (inputs.values.empty()) continue;
      values.add(inputs.values[t]);
      errors.add(target - inputs.values[t]);
    }
  }
  train::Values all;
  put(scores, "critic/score", &all);
  put(rewards, "critic/rewards", &all);
  put(advantages, "critic/advantages", &all);
  put(returns, "critic/returns", &all);
  if (section.advantage == "gae") {
    put(values, "critic/values", &all);
    all.push_back(
        {"critic/vf_explained_var", 1 - errors.variance() / (returns.variance() + kBesideReturns)});
  }
  put(lengths, "response_length", &all);
  all.push_back({"response_length/clip_ratio", full.mean()});
  all.push_back({"response/aborted_ratio", empty.mean()});
  put(prompts, "prompt_length", &all);
  return all;
}

}  // namespace hocket::rl

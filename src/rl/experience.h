// SPDX-License-Identifier: Apache-2.0
// Samples of a step between their sampling and their updates: what is computed of them, the sums
// that metrics are means of, and the form in which processes and files have them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rl/advantage.h"
#include "rl/moments.h"
#include "rl/prompts.h"
#include "rl/sample.h"
#include "train/evaluate.h"

namespace hocket::rl {

/// Samples of a step, by group and index, with what training needs of each.
struct Experience {
  std::vector<Sample> samples;
  std::vector<LossInputs> loss_inputs;  ///< of each
  int64_t groups_left_out = 0;          ///< by dynamic sampling
  int64_t prompts = 0;                  ///< that were sampled, groups left out among them
  int64_t rounds = 0;                   ///< of sampling
};

/// Returns the loss inputs of samples, with rewards, old log-probabilities (those of sampling), and
/// the marks of the overlong filter and of samples left out.
std::vector<LossInputs> loss_inputs_of(const engine::RlSection& section,
                                       std::span<const Sample> samples);

/// Penalises the length of a sample: sets shaped_reward.
void shape_reward(const engine::RlSection& section, Sample* sample);

/// Returns whether all samples of a group, but those left out, have the same reward, before it was
/// shaped.
bool is_even(std::span<const Sample> group);

/// Returns the name of a reward in metrics and samples.
const std::string& name_of(const engine::RewardSection& reward);

/// Returns the name of the first reward, which decides whether samples are right.
const std::string& deciding_reward(const engine::RlSection& section);

/// Returns whether a sample is right: its reward `deciding` is `right_from` or more, did not fail
/// and is not None.
bool is_right(const Sample& sample, const std::string& deciding, double right_from);
/// Returns whether no reward of a sample can rise: those with a weight above 0 that apply are
/// right, and those with one below 0 are 0 or less. None failed.
bool is_right_in_all(const Sample& sample, const engine::RlSection& section);

/// Writes samples as bytes, and reads them again, bit for bit.
std::string to_bytes(std::span<const Sample> samples);
std::vector<Sample> samples_of(std::string_view bytes);

struct LineOptions {
  int64_t samples_per_prompt = 1;
  int64_t top_k = 0;            ///< experts of a token in a layer
  bool old_of_trainer = false;  ///< old log-probabilities are of training (old_logprobs: trainer)
};
/// Returns the line of a sample in a trajectory file, without its end: slime's field names.
/// `inputs`: of the step, before set_weights; null: the sample trains nothing.
std::string to_line(const Sample& sample, const Prompt& prompt, const LossInputs* inputs,
                    const LineOptions& options);

/// Means of a step's samples under TRL's names, of rewards without samples left out: reward,
/// reward_std (of all samples together), frac_reward_zero_std, completions/..., rewards/NAME/mean;
/// and rl/reward_std_in_group, the mean of the groups' deviations. With one sample of a prompt
/// those of groups are left out: one reward has no deviation. Means of nothing are not numbers.
train::Values sample_metrics(std::span<const Sample> samples, int64_t samples_per_prompt);

/// Means of an evaluation's samples: reward, pass@k for k = 1, 2, 4, ... up to the samples of a
/// prompt, completions/..., rewards/failed. `deciding` and `right_from`: as of is_right.
train::Values evaluation_metrics(std::span<const Sample> samples, int64_t samples_per_prompt,
                                 const std::string& deciding, double right_from);

/// Sums over the tokens of an update, for its metrics under TRL's and verl's names: clip shares,
/// entropy, divergence, ratio, the policy's loss.
class UpdateStats {
 public:
  explicit UpdateStats(const engine::RlSection& section)
      : section_(section), has_reference_(section.kl_coef > 0) {}
  /// Adds a sample; log-probabilities and entropies of its tokens under the policy before the
  /// update.
  void add(const LossInputs& inputs, std::span<const double> logprobs,
           std::span<const double> entropies);
  /// Not numbers if no token trained.
  train::Values means() const;
  /// Returns the loss that is trained, with divergence and entropy, without that of a router; not a
  /// number if no token trained.
  double loss() const;

 private:
  const engine::RlSection& section_;
  double tokens_ = 0, entropy_ = 0, low_ = 0, high_ = 0, kl_ = 0, moved_ = 0, ratio_ = 0;
  double lower_ = 0, ppo_kl_ = 0;                                  ///< also by token
  double pg_loss_ = 0, verl_entropy_ = 0, kl_loss_ = 0;            ///< by the weights of tokens
  double samples_ = 0, low_of_samples_ = 0, high_of_samples_ = 0;  ///< shares of each sample
  double least_low_ = 0, most_high_ = 0;                           ///< of a sample
  bool has_reference_;
};

/// Largest difference of log-probabilities between sampling and training.
struct Mismatch {
  double largest = 0, sum = 0;
  double largest_of_probabilities = 0, sum_of_probabilities = 0, squares_of_probabilities = 0;
  int64_t tokens = 0, unequal = 0;
  int64_t all_tokens = 0;  ///< of the step, compared or not
  void add(std::span<const double> sampled, std::span<const double> trained);
  /// Returns the metrics of TRL and verl; nothing if no token was compared.
  train::Values values() const;
  /// Returns "0 in all of 5120 tokens", "0 in all of 1280 tokens compared of 5120", or
  /// the largest and the counts.
  std::string text() const;
};

}  // namespace hocket::rl

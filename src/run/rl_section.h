// SPDX-License-Identifier: Apache-2.0
// Keys of run.yaml about reinforcement learning (`hocket rl`, objective rl).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"

namespace hocket::engine {

/// One reward of a sample; the sample's reward is their weighted sum.
struct RewardSection {
  std::string type;
  std::string name;  ///< in metrics; empty: the type
  double weight = 1;
  std::string extract = "auto";
  std::string pattern;
  std::string schema;
  std::string form = "value";
  int64_t target_length = 0;
  double format_score = 0.1;
  std::string command;
  int64_t processes = 2;
  std::string url, judge_model, judge_prompt, judge_pattern, api_key_env;
  double timeout_s = 30, start_timeout_s = 300, busy_timeout_s = 600;
  int64_t retries = 1;
  double failed_score = 0;
  void fields(Fields& v);
};

/// Correction for samples that another policy drew than the one that the ratio is anchored at
/// (Yao et al. 2025, truncated importance sampling).
struct CorrectionSection {
  std::string type = "none";
  std::string level = "token";
  double low = 0.5, high = 2;
  void fields(Fields& v);
};

/// DAPO's dynamic sampling (Yu et al., arXiv 2503.14476, section 3.2).
struct DynamicSamplingSection {
  bool on = false;
  int64_t max_rounds = 0;  ///< 0: no limit
  void fields(Fields& v);
};

/// DAPO's treatment of samples that reach the longest length (section 3.4).
struct OverlongSection {
  bool filter = false;
  int64_t buffer = 0;
  double penalty = 1;
  void fields(Fields& v);
};

/// The value model of advantage: gae.
struct CriticSection {
  std::string path;  ///< MODEL; empty: the policy's initial weights
  double lr = 0;     ///< 0: train.lr
  // Course of the learning rate, in place of the same keys of section train; null: as there.
  std::optional<std::string> schedule;
  std::optional<double> min_lr;
  std::optional<int64_t> lr_warmup_steps;
  std::optional<double> lr_warmup_share;
  double clip = 0.2;
  int64_t warmup_steps = 0;
  int64_t epochs = 1;
  void fields(Fields& v);
};

struct RlSection {
  int64_t prompts_per_step = 16, samples_per_prompt = 8;
  int64_t prompts_per_update = 0;  ///< 0: prompts_per_step
  int64_t epochs = 1;
  int64_t max_prompt_tokens = 0;  ///< 0: as many as the model has positions for
  int64_t max_new_tokens = 64;
  double temperature = 1, top_p = 1, min_p = 0;
  int64_t top_k = 0;
  std::vector<std::string> stop;

  std::string advantage = "grpo";
  double gamma = 1, lambda = 1, lambda_length = 0;
  std::string loss = "ppo";
  double clip_low = 0.2, clip_high = 0.2, dual_clip = 0;
  std::string aggregation = "token-mean";
  std::string tokens_in_mean = "update", samples_in_mean = "all";
  int64_t horizon = 0;  ///< 0: max_new_tokens
  double kl_coef = 0;
  std::string kl_estimator = "k3", kl_in = "loss";
  std::string reference;
  double entropy_coef = 0;
  std::string old_logprobs = "rollout";
  bool routing_replay = false;
  CorrectionSection correction;
  DynamicSamplingSection dynamic_sampling;
  OverlongSection overlong;
  CriticSection critic;

  std::vector<RewardSection> rewards;
  int64_t reward_workers = 4;
  double max_failed_rewards = 0.1;
  std::string failed_samples = "leave_out";

  bool strict = true;
  int64_t eval_prompts = 64, eval_samples = 1;
  double eval_temperature = 0;
  double right_from = 1;
  bool trajectories = false;
  int64_t max_num_seqs = 64, max_num_batched_tokens = 256;
  bool prefix_caching = true;
  std::optional<double> kv_cache_memory;

  /// Returns the prompts of an update.
  int64_t update_prompts() const {
    return prompts_per_update > 0 ? prompts_per_update : prompts_per_step;
  }
  /// Returns the updates that follow one another on the samples of a step.
  int64_t updates_per_step() const { return prompts_per_step / update_prompts() * epochs; }
  /// Returns whether advantages are divided by their deviation over a step's tokens.
  bool whitens() const {
    return advantage == "gae" || advantage.starts_with("reinforce_plus_plus");
  }
  void fields(Fields& v);
};

}  // namespace hocket::engine

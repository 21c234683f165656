// SPDX-License-Identifier: Apache-2.0
// Rewards of samples: rules, commands, and judges behind a server (docs/rewards.md).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rl/sample.h"
#include "run/rl_section.h"

namespace hocket::rl {

/// A sample as a reward sees it.
struct Scored {
  const Prompt& prompt;
  const Sample& sample;
};

/// Scores one sample at a time; its functions are called from several threads.
class Reward {
 public:
  virtual ~Reward() = default;
  /// Returns a finite score, with details if the reward has several numbers. Throws Error if it
  /// fails: a ground truth that is missing, an answer that is no number, a time-out.
  virtual RewardPart score(const Scored& scored) = 0;
};

/// Makes a reward. Throws Error, in the name of `where`, for a section that lacks something, a
/// pattern or schema that is not one, a command that cannot be started.
std::unique_ptr<Reward> make_reward(const engine::RewardSection& section, const std::string& where);

/// Scores samples on threads of its own, while others are still generated. A failure is tried
/// again, then recorded in the sample, whose part is RewardSection::failed_score.
class RewardPool {
 public:
  /// Error: as make_reward; two rewards of one name; none at all.
  RewardPool(const engine::RlSection& section, const std::string& where);
  ~RewardPool();

  /// Names of the rewards, in the order of their sections.
  const std::vector<std::string>& names() const;
  /// Takes a finished sample. Prompt and sample stay, and nobody else touches the sample, until
  /// wait().
  void add(const Prompt& prompt, Sample& sample);
  /// Returns once all samples are scored: rewards, reward, reward_failed and shaped_reward (as
  /// reward) are set.
  void wait();
  /// Returns the seconds that threads spent in scoring since the start.
  double busy_s() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hocket::rl

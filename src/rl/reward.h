// SPDX-License-Identifier: Apache-2.0
// Rewards of samples: rules, commands, and judges behind a server (docs/rewards.md).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "rl/sample.h"
#include "run/rl_section.h"

namespace hocket::rl {

/// A sample as a reward sees it.
struct Scored {
  const Prompt& prompt;
  const Sample& sample;
};

/// A failure that further tries do not mend.
class LastingFailure : public Error {
 public:
  using Error::Error;
};

/// Scores one sample at a time; its functions are called from several threads.
class Reward {
 public:
  virtual ~Reward() = default;
  /// Returns a finite score, with details if the reward has several numbers. Throws Error if it
  /// fails: a ground truth that is missing, an answer that is no number, a time-out. Waits stop as
  /// stop_if_asked() (base/stop.h).
  virtual RewardPart score(const Scored& scored) = 0;
};

/// Makes a reward, and starts its command. Throws Error, in the name of `where`, for a section that
/// lacks something or has keys of another type. Also throws for a pattern or schema that is not
/// one, a command that ends at once, or a host that is not known.
std::unique_ptr<Reward> make_reward(const engine::RewardSection& section, const std::string& where);

/// Scores samples on threads of its own, while others are still generated. A failure is tried
/// again, then recorded in the sample, whose part is RewardSection::failed_score.
class RewardPool {
 public:
  /// `where` names the section, as rl does. Throws Error as make_reward, in the name of
  /// rl.rewards[1], for two rewards of one name, and for none at all.
  RewardPool(const engine::RlSection& section, const std::string& where);
  /// Gives up what is not scored yet, and ends commands with their children.
  ~RewardPool();

  /// Names of the rewards, in the order of their sections.
  const std::vector<std::string>& names() const;
  /// Takes a finished sample. Prompt and sample stay, and nobody else touches the sample, until
  /// wait(). May be called concurrently.
  void add(const Prompt& prompt, Sample& sample);
  /// Returns once all samples are scored: rewards, reward, reward_failed, left_out and
  /// shaped_reward (as reward) are set.
  void wait();
  /// Waits for at most so many seconds. Returns whether all samples are scored.
  bool wait_for(double seconds);
  /// Drops samples that are not scored yet, also those under way; their rewards are not set. Like
  /// wait(), returns once nobody writes to a sample.
  void give_up();
  /// Returns the seconds that threads spent in scoring since the start.
  double busy_s() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hocket::rl

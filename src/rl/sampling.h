// SPDX-License-Identifier: Apache-2.0
// Samples of a step and of evaluations, scored: rounds of rollouts until a step is full, with
// rewards computed beside them, the same in all processes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rl/experience.h"
#include "rl/reward.h"
#include "rl/rollout.h"
#include "rl/uneven_groups.h"

namespace hocket::rl {

/// Samples of an evaluation, with the prompt of each.
struct Evaluated {
  std::vector<Sample> samples;
  std::vector<const Prompt*> prompts;
  int stopped = 0;  ///< the signal that came to some process, and left it undone; 0: none
};

class Sampling {
 public:
  /// Returns the signal that this process got; 0: none. Samples and rewards under way, in all
  /// processes, are then dropped.
  using Signal = Rollout::Signal;
  /// `head_parts` as of Rollout. With ranks as processes, the first scores. Requires: all outlive
  /// it. Throws Error for rewards that cannot be made.
  Sampling(const engine::Run& run, train::TrainedReaders& readers, const PromptData& data,
           int64_t head_parts, comm::Processes& processes);

  Rollout& rollout() { return rollout_; }
  /// Samples prompts number `first` and on until the step is full: all of them, with dynamic
  /// sampling those whose samples have different rewards. `version`: of the policy. Returns the
  /// signal that came to some process, kExhausted if dynamic sampling does not fill the step,
  /// kFailedRewards if too many rewards fail, or 0: it is full. uneven() keeps the groups of
  /// finished rounds, and the next call goes on from them, until its end_step(). All processes
  /// call.
  static constexpr int kExhausted = -1, kFailedRewards = -2;
  int gather(int64_t first, int64_t version, const Signal& signal, Experience* experience);
  /// Samples rl.eval_prompts of a held-out set, unless a signal comes to some process. In all
  /// processes but the first there are none.
  Evaluated evaluate(const PromptSet& set, int64_t version, const Signal& signal);

  double sampling_s() const { return sampling_s_; }  ///< of the last gather()
  double waiting_s() const { return waiting_s_; }    ///< of it, for rewards after the last sample
  const UnevenGroups& uneven() const { return uneven_; }
  UnevenGroups& uneven() { return uneven_; }
  /// Says how many rewards failed, after kFailedRewards.
  const std::string& failure() const { return failure_; }
  const RolloutStats& stats() const { return stats_; }  ///< sums of its rounds

 private:
  bool is_first() const { return processes_.index() == 0; }
  int sample_round(const RolloutRequest& request, const Signal& signal);
  int score(const RolloutRequest& request, const Signal& signal, std::vector<Sample>* samples);
  int await_rewards(int came, const Signal& signal);
  std::string count_failures(const std::vector<Sample>& samples);
  void share(std::vector<Sample>* samples);

  const engine::Run& run_;
  const engine::RlSection& rl_;
  const PromptData& data_;
  comm::Processes& processes_;
  Rollout rollout_;
  std::optional<RewardPool> rewards_;  ///< of the first process
  double sampling_s_ = 0, waiting_s_ = 0;
  double waited_s_ = 0;  ///< for rewards after the last score()
  UnevenGroups uneven_;
  int64_t scored_ = 0, failed_ = 0;  ///< samples of the step, in the first process
  std::string failure_;
  RolloutStats stats_;
};

}  // namespace hocket::rl

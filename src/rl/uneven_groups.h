// SPDX-License-Identifier: Apache-2.0
// Groups that dynamic sampling keeps, and the sizes of its rounds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rl/experience.h"

namespace hocket::rl {

/// Groups with different rewards that no update has used: those of the step under way, and those
/// that its last round had too many of, for the next step. They are part of checkpoints, so that a
/// resumed run has the same groups with the same rewards.
class UnevenGroups {
 public:
  explicit UnevenGroups(const engine::RlSection& section) : rl_(section) {}

  /// Returns the number of prompts of the next round: by the share of uneven groups in the step so
  /// far, or else in the last one, as many as should fill the step; at most two steps' prompts.
  /// Without dynamic sampling those that are missing. 0: the step is full.
  int64_t next_round() const;
  /// Adds the samples of a round; with dynamic sampling, without groups of equal rewards.
  void add(std::vector<Sample> round);
  /// Copies the first groups to a step's experience. Requires: it is full.
  void fill(Experience* experience) const;
  /// Removes the groups of the step, which was made, and begins the next one.
  void end_step();

  /// Returns whether the step cannot be filled: its rounds are over, or as many groups in
  /// succession as 16 steps have, and at least 512, had equal rewards.
  bool is_exhausted() const;
  /// Returns whether there were so many groups in succession, whatever the rounds, and nine in ten
  /// of their samples are right in all rewards.
  bool is_solved() const;
  /// Returns "after 3 rounds of generation 2 of 16 prompts have samples of ...", for a message.
  std::string text() const;

  int64_t prompts() const { return prompts_; }  ///< sampled for the step under way
  int64_t rounds() const { return rounds_; }    ///< of the step under way

  /// Writes the state as bytes, and reads it; "": there are no groups, and no round was made.
  std::string to_bytes() const;
  void restore(std::string_view bytes);

 private:
  int64_t groups() const { return std::ssize(samples_) / rl_.samples_per_prompt; }
  bool has_long_row() const;

  const engine::RlSection& rl_;
  std::vector<Sample> samples_;
  int64_t prompts_ = 0, left_out_ = 0, rounds_ = 0;  ///< of the step under way
  double share_ = 1;                                 ///< of uneven groups in the last step
  /// Groups with equal rewards since the last other one, and their samples that are right in
  /// all rewards.
  int64_t even_in_a_row_ = 0, right_in_a_row_ = 0;
};

}  // namespace hocket::rl

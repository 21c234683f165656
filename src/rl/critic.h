// SPDX-License-Identifier: Apache-2.0
// The value model of advantage: gae: values of samples, and updates of it, in a store of its own on
// the ranks of the policy.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/programs.h"
#include "rl/batches.h"
#include "rl/prompts.h"
#include "train/evaluate.h"
#include "train/saver.h"
#include "train/schedule.h"
#include "train/start.h"

namespace hocket::rl {

/// Returns the run of a policy's critic: its model with a value head, without an adapter, in
/// output.dir/critic. Section train has the critic's learning rate and its schedule.
engine::Run critic_run(const engine::Run& policy);

class Critic {
 public:
  /// `policy`: its run, and its programs, whose inspection is that of the critic's. Requires: run,
  /// programs and stop outlive it.
  Critic(const engine::Run& policy, engine::Programs& programs, train::StopSignals& stop);

  /// Returns the program of its updates by its sizes.
  engine::ProgramSpec spec(const engine::Sizes& sizes) const;
  /// Returns the program that computes values, likewise.
  engine::ProgramSpec values(const engine::Sizes& sizes) const;
  /// Reads the critic that belongs to the policy's start: of the checkpoint of the same step, else
  /// of rl.critic.path, else the policy's weights with a new head. All processes call. Throws Error
  /// if the checkpoint is absent. `policy_updates`: those of the whole training. Returns the
  /// position of its checkpoint, if it read one: within the warm-up, where the policy is of step 0,
  /// the critic's is the newest.
  std::optional<train::Position> load(const train::Start& policy, const PromptData& data,
                                      int64_t micro_batches, int64_t policy_updates);
  /// Fills the critic's values of these samples' tokens. All processes call.
  void evaluate(std::span<const Item> items, const Packing& packing);
  /// Makes its updates by returns, `at_once` samples at a time, rl.critic.epochs times, and sets
  /// their weights for each: its loss is the policy's mean. `loss_inputs`: those of `items`.
  /// An update without a token that trains changes nothing; metrics of a step of such updates are
  /// not numbers. Returns metrics. All processes call. If a gradient is not finite, ends with
  /// failure().
  train::Values learn(const std::vector<Item>& items, std::span<LossInputs> loss_inputs,
                      size_t at_once);
  /// Returns "loss 0.1, explained variance 0.5, lr 0.001" of the last learn().
  const std::string& text() const { return text_; }
  /// Returns the reason why the last learn() ended early; empty: it did not.
  const std::string& failure() const { return failure_; }
  /// Returns whether the learn() that ended with a failure changed no parameter, so that the critic
  /// belongs to the policy's last update.
  bool is_unchanged() const { return is_unchanged_; }
  /// Returns the folder of its checkpoint of a step.
  std::string folder_of(int64_t step) const { return saver_.folder_of(step); }
  /// As Saver::set_file.
  void set_file(const std::string& name, const std::string& text) { saver_.set_file(name, text); }
  /// Saves a checkpoint of the policy's step. All processes call.
  void save(const train::StepsDone& done, const PromptData& data, train::Position position);
  /// Removes checkpoints before those that train.keep_last keeps. Requires: the policy of this step
  /// is saved, so that none that is removed belongs to its newest checkpoint. All processes call.
  void prune(int64_t step) const;

 private:
  double update(std::span<const Item> items);
  int64_t updates_of_step() const;
  int64_t updates_after(int64_t policy_updates) const;

  const engine::Run& policy_;
  const engine::Run run_;
  engine::Programs programs_;
  train::Saver saver_;
  int64_t updates_ = 0;  ///< so far
  int64_t skipped_ = 0;  ///< of these, without a token that trains
  train::Course course_;
  double lr_ = 0, norm_ = 0;  ///< of the last update
  int64_t least_ = 1;         ///< micro-batches of the program that holds its parameters
  std::string began_with_, text_, failure_;
  bool is_unchanged_ = true;
};

}  // namespace hocket::rl

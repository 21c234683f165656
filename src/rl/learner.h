// SPDX-License-Identifier: Apache-2.0
// The policy's side of a step: log-probabilities of samples under the reference and the policy, and
// updates of the policy by the optimizer step of `train`.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/programs.h"
#include "rl/batches.h"
#include "rl/experience.h"
#include "train/frozen_model.h"
#include "train/stepper.h"

namespace hocket::rl {

/// Returns an output by token of all micro-batches of a session's last step, [rows, seq_len]. All
/// processes call.
std::vector<double> outputs_of(engine::Session& session, const char* name);

/// Returns the number of parts of the vocabulary whose sums the program's head adds up: plan.tp
/// where ranks of tp have a part each, else 1.
int64_t head_parts(const engine::Run& run, const engine::Compiled& training);

class Learner {
 public:
  /// Requires: all outlive it.
  Learner(const engine::Run& run, engine::Programs& programs, train::TrainedReaders& readers);

  /// Returns the program of an update by its number of micro-batches.
  engine::ProgramSpec spec(int64_t micro_batches) const;
  /// Divisor of the number of micro-batches of an update, and the least there are.
  int64_t multiple() const { return run_.plan.num_micro_batches; }
  /// Packs samples into the rows of an update.
  Packing pack(std::span<const Item> items) const;
  /// Returns the reference model; null: there is none.
  const train::FrozenModel* reference() const { return reference_ ? &*reference_ : nullptr; }
  train::FrozenModel* reference() { return reference_ ? &*reference_ : nullptr; }

  /// Adds log-probabilities of the reference, and with old_logprobs: trainer those of the policy,
  /// to the loss inputs of the samples. `version`: of the policy; samples of others are not
  /// compared. Throws Error if sampling and training differ (rl.strict), before any update. All
  /// processes call.
  void prepare(std::span<const Item> items, int64_t version);
  /// Makes an optimizer step of these samples. `first`: the policy is still that of prepare().
  /// Requires: their weights are set, and a token trains. Throws Error if sampling and training
  /// differ (rl.strict), or as Stepper::run. All processes call.
  void update(std::vector<Item> items, bool first, train::Stepper& stepper, double lr);
  /// Counts an update of samples without a token that trains: nothing changes, parameters and
  /// states of the optimizer included. All processes call.
  void skip(train::Stepper& stepper, double lr);

  /// The data of the update that is made, for its stepper.
  train::StepData data();
  /// Adds metrics of the update that was made.
  void measure(train::StepMetrics& metrics);
  const Mismatch& mismatch() const { return mismatch_; }  ///< of the last step's first update
  double reference_s() const { return reference_s_; }     ///< seconds of the last prepare()
  double old_s() const { return old_s_; }                 ///< likewise

 private:
  void compare(const Item& item, std::span<const double> trained);
  void judge() const;
  void measure_samples(UpdateStats* stats);

  const engine::Run& run_;
  const engine::RlSection& rl_;
  engine::Programs& programs_;
  train::TrainedReaders& readers_;
  std::optional<train::FrozenModel> reference_;
  double reference_s_ = 0, old_s_ = 0;
  Mismatch mismatch_;
  int64_t version_ = 0;  ///< of the policy that begins the step

  // The update under way.
  std::vector<Item> items_;
  std::optional<Packing> packing_;
  engine::Session* session_ = nullptr;  ///< null: nothing is trained
  bool compares_ = false;
};

}  // namespace hocket::rl

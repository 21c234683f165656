// SPDX-License-Identifier: Apache-2.0
// One optimizer step at a time: reads its sequences, runs the program, reports metrics, and says
// when a checkpoint is due. The loop around it chooses the steps, their learning rates and the work
// between them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory.h"
#include "engine/session.h"
#include "program/memory.h"
#include "runtime/probe.h"
#include "train/metrics.h"
#include "train/schedule.h"

namespace hocket::train {

/// The sequences of a step.
struct StepData {
  engine::Batch batch;  ///< rows that no rank here reads may be padding
  /// Targets, or answers, that the loss averages over: those of its rows that no other process
  /// counts.
  int64_t targets = 0;
  engine::Session* session = nullptr;  ///< that runs the step; null: the stepper's
};

/// Callbacks of a stepper. Requires: everything they refer to outlives it.
struct StepperParts {
  /// Returns the sequences of step 1, 2, ...
  std::function<StepData(int64_t step)> data;
  /// Adds further metrics of the last step, in every process; empty: none.
  std::function<void(StepMetrics&)> measure;
  /// Receives the metrics of a step, in every process.
  std::function<void(const StepMetrics&)> metrics;
  /// Saves the ranks' tensors after the completed steps; all processes call it.
  std::function<void(const StepsDone&)> save;
  /// Describes the newest checkpoint, for the errors of a step: "there is no checkpoint yet".
  std::function<std::string()> last_checkpoint;
  /// Saves the completed steps before one that changed nothing ends the run, for a reason; all
  /// processes call it. Empty: nothing is saved then.
  std::function<void(const std::string& reason)> save_before_failure;
  /// Metrics that the step does not measure: predictions, planned memory.
  StepMetrics known;
  std::vector<program::Memory> planned;  ///< of a rank of every class
};

class Stepper {
 public:
  /// Requires: both outlive it; the session has the trained parameters. With ranks as processes
  /// each has a stepper, and all call it alike.
  Stepper(const engine::Run& run, engine::Session& session, StepperParts parts, StepsDone done);

  const StepsDone& done() const { return done_; }
  /// Seconds of a step, by the last ten or so; 0 before the first.
  double recent_step_s() const { return recent_step_s_; }
  /// Bytes of the rank that has taken most.
  int64_t most_memory() const { return memory_.most(); }

  /// Reads the data of the next step. Returns the maximum of `word` over all processes (an
  /// all-reduce), such as a signal that one of them got.
  int prepare(int word);
  /// Runs the prepared step. A step with a gradient norm that train.skip_grad_norm or
  /// train.on_nonfinite rejects changes nothing and counts as skipped. Throws Error if its loss or
  /// norm is not finite and should be, or after ten consecutive skipped steps.
  StepMetrics run(double learning_rate);
  /// Counts a step that has nothing to train, in place of prepare() and run(): no program runs, and
  /// loss and gradient norm are not numbers.
  StepMetrics skip(double learning_rate);
  /// Adds seconds that were spent for the next step outside of it, such as on its samples.
  void spend(double seconds) { done_.seconds += seconds; }

  /// Returns whether a checkpoint is due: by steps (train.save_every) or by time
  /// (train.save_minutes, on the clock of the first process).
  bool save_is_due() const;
  void save();

 private:
  bool is_first() const;
  void judge(StepMetrics& metrics);
  void save_unchanged(const std::string& reason);
  void complete(StepMetrics& metrics);

  const engine::Run& run_;
  const engine::TrainSection& section_;
  engine::Session& session_;
  StepperParts parts_;
  StepsDone done_;
  std::optional<engine::Batch> batch_;  ///< of the step that was prepared
  engine::Session* steps_ = nullptr;    ///< the session that runs it; null: it has nothing to run
  int64_t begin_ns_ = 0;                ///< time of prepare()
  int64_t saved_ns_;                    ///< when a checkpoint was saved last
  bool time_to_save_ = false;
  int64_t skipped_in_a_row_ = 0;
  double recent_step_s_ = 0;
  engine::MemoryWatch memory_;
  runtime::Probe probe_;
  int64_t probed_ns_ = 0;  ///< when the machine's speed was measured last
};

}  // namespace hocket::train

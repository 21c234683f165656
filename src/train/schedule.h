// SPDX-License-Identifier: Apache-2.0
// Number of steps, the learning rate of each, and its sequences: pure functions of the step. All
// but the number of steps that fit into a time (train.minutes) is fixed before the first one,
// independent of clock and interruptions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "engine/batch.h"
#include "run/config.h"

namespace hocket::train {

/// The steps that are done, over all starts of a run.
struct StepsDone {
  int64_t step = 0;
  int64_t skipped = 0;                             ///< of them, those that changed nothing
  double seconds = 0;                              ///< spent in them
  std::vector<std::pair<int64_t, double>> losses;  ///< of each
};

/// Decides and prints the number of steps for train.minutes: a step takes the mean time of those
/// done, or `predicted_s` without any. At least 1.
int64_t decide_steps(const engine::TrainSection& train, double predicted_s,
                     const StepsDone& done = {});
/// Returns the total number of steps if `done` took `seconds`, and each of the rest takes `step_s`;
/// at least `done`.
int64_t corrected_steps(const engine::TrainSection& train, int64_t done, double seconds,
                        double step_s);
/// The step after which `steps` is corrected next, from step `done` on: the tenth, then each time
/// that the measured ones have doubled, and at the end each time that half of the rest is done.
int64_t next_correction(int64_t done, int64_t steps);

/// Returns the steps that read the data train.epochs times.
int64_t steps_of_epochs(const engine::TrainSection& train, int64_t sequences_per_epoch);

/// Returns a note for a step that reads the data more than once; empty: it does not.
std::string note_of_step(const engine::TrainSection& train, int64_t sequences_per_epoch);

/// End of a run, and the state of the schedule at its last change.
struct Course {
  int64_t steps = 0;
  int64_t since = 0;  ///< the step after which `steps` was changed
  double done = 0;    ///< completed share of the way behind the warm-up at that step

  /// The same way from this step on, with another end. The learning rate does not jump.
  Course with_end(const engine::TrainSection& train, int64_t step, int64_t steps) const;
};

/// Steps of the warm-up: train.warmup_steps, or the share of the steps.
int64_t warmup_steps(const engine::TrainSection& train, const Course& course);
/// Learning rate of step 1..steps: linear warm-up, then train.schedule to train.final_lr().
double learning_rate(const engine::TrainSection& train, int64_t step, const Course& course);
inline double learning_rate(const engine::TrainSection& train, int64_t step, int64_t steps) {
  return learning_rate(train, step, Course{steps});
}

/// Warns of settings without effect in a schedule of this many steps.
void warn_of_schedule(const engine::TrainSection& train, int64_t steps);

/// The sequences of step 1, 2, ...: row r is sequence (step - 1) · rows + r of the training. Only
/// the rows named by `wanted` are read; `answers`: with their answers.
engine::Batch batch_of(const data::TrainingRows& from, int64_t step,
                       const std::vector<bool>& wanted, int64_t seq_len, bool answers = false);

}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
// Initial state of a run: its own checkpoint, weights of another folder, or random values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/session.h"
#include "train/best.h"
#include "train/frozen_model.h"
#include "train/resume.h"
#include "train/schedule.h"
#include "train/training_data.h"
#include "train/weight_files.h"

namespace hocket::train {

struct Start {
  /// Read by load(), which then closes them. A checkpoint of an adapter needs the weights of its
  /// base, too; otherwise one of the three is set at most.
  std::optional<checkpoint::Checkpoint> from;
  std::optional<checkpoint::ModelWeights> weights;
  std::shared_ptr<const checkpoint::AdapterWeights> adapter;  ///< that training starts from

  std::string began_with;  ///< initial state of the run, see Position
  StepsDone done;
  /// End of the run; with 0 steps: decided by train.minutes once a step is timed.
  Course course;
  Best best;                                ///< of the evaluations so far
  FrozenFiles frozen;                       ///< Position::frozen; of a new training those of now
  int64_t prompts = 0;                      ///< rl: Position::prompts
  int64_t tokens = 0;                       ///< rl: Position::tokens
  int64_t generated = 0;                    ///< rl: Position::generated
  std::vector<ChangedNumber> changed_loss;  ///< rl: keys that make another loss from here on
  std::string kernels;  ///< that the steps so far ran on, where they are not those of here

  /// "of checkpoint runs/x/checkpoints/step-000040 (step 40)", "random, seed 1".
  std::string describe() const;
};

/// Makes the folder of a run. Throws Error if a new training would replace files that no training
/// of ours wrote: one of ours leaves its lock there.
void claim_folder(const std::string& dir);

/// Reads the newest checkpoint's state, or opens the weights that the run is to start from. Throws
/// Error, before anything is timed, for a checkpoint of another training, and for checkpoints that
/// train.resume=false does not want. Throws it also for weights that do not fit the model or that
/// only other programs read. All processes call.
Start find_start(const engine::Run& run, const RunData& data,
                 const checkpoint::RunFolder& checkpoints);

/// Notes the files of a reference with a store of its own. Warns where a resumed training reads
/// another one than it began with: a run that the weights are of may have newer checkpoints, and
/// files may have been replaced.
void check_reference(const FrozenModel& reference, Start& start);

/// Loads the parameters that a new training begins with into a store; `start` stays as it is.
void load_initial(const Start& start, const engine::Run& run, const engine::Compiled& compiled,
                  const runtime::Store& store);

/// Loads parameters and optimizer state on all ranks: those of `start`, which is then closed, and
/// initial values for the rest. Prints the changed settings of a resumed run.
void load(Start& start, const engine::Run& run, engine::Session& session);

}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
// The training loop: host code that starts a program once per step, evaluates, saves and reports.
#pragma once

#include <optional>
#include <string>

#include "data/loader.h"
#include "engine/batch.h"
#include "engine/config.h"

namespace hocket::train {

struct TrainOptions {
  /// A program's text in place of lowering (`hocket train prog.txt`).
  std::string program_text;
  std::string command;  ///< as typed, for the report
};

/// Trains to the end, from the newest checkpoint of output.dir if there is one; a finished training
/// is left as it is. Returns 0, or 128 + the number of the signal that ended it after a step and
/// its checkpoint. Throws Error; a failed step leaves the last checkpoint as it was.
int train(const engine::Run& run, const TrainOptions& options);

/// Where the learning rate ends: train.min_lr, or a tenth of train.lr; at most train.lr.
double final_learning_rate(const engine::TrainSection& train);

/// Learning rate of step 1..steps: linear warm-up, then cosine to final_learning_rate().
double learning_rate(const engine::TrainSection& train, int64_t step, int64_t steps);

/// The sequences of step 1, 2, ...: row r is sequence (step - 1) · rows + r of the training.
engine::Batch batch_of(const data::PackedLoader& loader, int64_t step, int64_t rows,
                       int64_t seq_len);

}  // namespace hocket::train

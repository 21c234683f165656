// SPDX-License-Identifier: Apache-2.0
// The training loop: host code that starts a program once per step, evaluates, saves and reports.
#pragma once

#include <optional>
#include <string>

#include "run/config.h"

namespace hocket::train {

struct TrainOptions {
  /// A program in place of a lowered one (`hocket train prog.txt`).
  std::optional<program::Program> parsed_program;
  std::string command;  ///< as typed, for the report
};

/// Trains to the end, from the newest checkpoint of output.dir if there is one; a finished training
/// is left as it is. Returns 0, or 128 + the number of the signal that ended it after a step and
/// its checkpoint. Throws Error; a failed step leaves the last checkpoint as it was.
int train(const engine::Run& run, const TrainOptions& options);

}  // namespace hocket::train

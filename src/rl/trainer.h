// SPDX-License-Identifier: Apache-2.0
// The loop of reinforcement learning: prompts, samples, rewards, advantages, updates.
#pragma once

#include <string>

#include "run/config.h"

namespace hocket::rl {

/// Trains to the end, from the newest checkpoint of output.dir if there is one; a finished training
/// is left as it is. Checkpoints are saved between steps. So a run that ended anywhere goes on with
/// the samples and losses that it would have had, bit for bit. `command`: as typed, for the report.
/// Returns 0, or 128 + the number of the signal that ended it. Throws Error; a failed step leaves
/// the last checkpoint as it was.
int train(const engine::Run& run, const std::string& command);

}  // namespace hocket::rl

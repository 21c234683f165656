// SPDX-License-Identifier: Apache-2.0
// Which runs may go on from a checkpoint (docs/config.md, "Going on").
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "engine/config.h"

namespace hocket::train {

/// Error, naming the first key that differs with both values, unless the run has the model, type,
/// seed, batches and data (its fingerprint) of the one that saved the checkpoint.
void check_same_training(const engine::Run& run, const std::string& data_fingerprint,
                         const checkpoint::Checkpoint& from);

}  // namespace hocket::train

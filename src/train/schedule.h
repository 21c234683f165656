// SPDX-License-Identifier: Apache-2.0
// What is settled before the first step, so that it depends on neither the clock nor an
// interruption: how many steps there are, the learning rate of each, and the sequences it reads.
#pragma once

#include <cstdint>
#include <vector>

#include "data/loader.h"
#include "engine/batch.h"
#include "run/config.h"

namespace hocket::train {

/// Decides, and says, how many steps train.minutes has room for if one takes `step_s`; at least 1.
int64_t decide_steps(const engine::TrainSection& train, double step_s);

/// Learning rate of step 1..steps: linear warm-up, then cosine to train.final_lr().
double learning_rate(const engine::TrainSection& train, int64_t step, int64_t steps);

/// Warns of what the schedule of so many steps does not do although it seems to.
void tell_schedule(const engine::TrainSection& train, int64_t steps);

/// The sequences of step 1, 2, ...: row r is sequence (step - 1) · rows + r of the training. Only
/// the rows named by `wanted` are read.
engine::Batch batch_of(const data::PackedLoader& loader, int64_t step,
                       const std::vector<bool>& wanted, int64_t seq_len);

}  // namespace hocket::train

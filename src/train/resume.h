// SPDX-License-Identifier: Apache-2.0
// What a run may start from: which checkpoint goes on (docs/config.md, "Going on"), and what the data
// must be like.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "data/prepare.h"
#include "engine/config.h"

namespace hocket::train {

/// Error, naming the first key that differs with both values, unless the run has the model, type,
/// seed, batches and data (its fingerprint) of the one that saved the checkpoint.
void check_same_training(const engine::Run& run, const std::string& data_fingerprint,
                         const checkpoint::Checkpoint& from);

/// Error unless the model has an embedding for every token of the data, the data was made by the
/// tokenizer beside the weights that the run starts from, if it does so, and the shards have their
/// checksums (all ids are read once).
void check_data(const engine::Run& run, const data::Dataset& dataset, bool from_weights);

}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
// A sample of text from the parameters of a training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/report.h"
#include "engine/programs.h"
#include "train/training_data.h"

namespace hocket::train {

/// Returns the text that samples go on from: output.sample_prompt, or a prompt of the data.
std::string sample_prompt(const engine::Run& run, const TrainingData& data);

/// Draws a sample from the parameters in the memory of a training's ranks, after
/// sample_prompt(). Other memory of sessions and optimizer state is released first: the training
/// can run no further step. With ranks as processes all call it.
diagnose::Sample sample_text(const engine::Run& run, engine::Programs& training,
                             const TrainingData& data);

/// Most bytes in the memory of each rank while sample_text draws: parameters, KV cache and buffers.
/// The program that generates may hold the parameters otherwise, as it does where plan.shard.params
/// splits them. Then those of the training count, too, and messages. Throws Error if the plan
/// cannot generate.
std::vector<int64_t> sample_memory(const engine::Run& run, const engine::Compiled& training,
                                   const TrainingData& data);

}  // namespace hocket::train

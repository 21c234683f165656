// SPDX-License-Identifier: Apache-2.0
// Metrics of a step's samples under verl's names, as its compute_data_metrics has them
// (verl/trainer/ppo/metric_utils.py).
#pragma once

#include <span>

#include "rl/batches.h"
#include "run/rl_section.h"
#include "train/evaluate.h"

namespace hocket::rl {

/// Returns critic/score (of rewards with the penalty of length, as verl's reward manager of DAPO
/// has it), critic/rewards (less the divergence with kl_in: reward), critic/advantages,
/// critic/returns, critic/values and vf_explained_var (with a critic), response_length,
/// response/aborted_ratio and prompt_length. Of samples left out there are lengths only, and tokens
/// that do not train are left out; means of nothing are not numbers. Requires: the advantages are
/// set.
train::Values verl_metrics(const engine::RlSection& section, std::span<const Item> items);

}  // namespace hocket::rl

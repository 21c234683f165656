// SPDX-License-Identifier: Apache-2.0
// Lowers the pipeline stages of a rank: the tasks of one micro-batch, forward and backward.
#pragma once

#include "parallel/lowering/node_lowering.h"
#include "parallel/lowering/rank_state.h"

namespace hocket::parallel {

/// Fills RankTemplate::begin and RankTemplate::stages. With `split_backward` (the schedule has I
/// and W actions), the dW tasks stand at the end of the backward lists.
void lower_stages(RankState& rank, NodeLowering& nodes, bool split_backward);

}  // namespace hocket::parallel

// SPDX-License-Identifier: Apache-2.0
// Lowers the end of a step on one rank: reductions of gradients, norms, the optimizer, and the
// losses that the host reads.
#pragma once

#include "parallel/lowering/node_lowering.h"
#include "parallel/lowering/rank_state.h"

namespace hocket::parallel {

/// Fills RankTemplate::grads and RankTemplate::step. Requires: lower_stages.
void lower_step(RankState& rank, NodeLowering& nodes);

}  // namespace hocket::parallel

// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/lower_rank.h"

#include "parallel/lowering/node_lowering.h"
#include "parallel/lowering/rank_state.h"
#include "parallel/lowering/stage.h"
#include "parallel/lowering/step.h"

namespace hocket::parallel {

RankTemplate lower_rank(const LoweringInput& input, int32_t rank, bool split_backward,
                        program::ClassId cls, program::Program& program) {
  RankState state(input, rank, cls, program);
  NodeLowering nodes(state);
  lower_stages(state, nodes, split_backward);
  lower_step(state, nodes);
  state.out.values = state.values.take();
  return std::move(state.out);
}

}  // namespace hocket::parallel

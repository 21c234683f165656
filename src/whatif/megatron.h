// SPDX-License-Identifier: Apache-2.0
// Dependencies of the ops of a Megatron step: the model of "Understanding Stragglers in Large Model
// Training Using What-if Analysis" (2505.05713, section 3, and the published StragglerAnalysis).
// Found on one step of one replica and used for all.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif::megatron {

/// Names of the run, in this order.
enum Type : int32_t {
  forward,
  backward,
  forward_send,
  forward_recv,
  backward_send,
  backward_recv,
  params_gather,
  grads_scatter,
  separate_grads,
  layernorm_grads,
  embedding_grads,
  clip,
  optimizer,
  gc,
  num_types
};

struct TypeRow {
  const char* name;
  Traffic traffic;
  int32_t stream;
};
inline constexpr std::array<TypeRow, num_types> kTypes = {{
    {"forward-compute", Traffic::none, 0},
    {"backward-compute", Traffic::none, 0},
    {"forward-send", Traffic::message, 2},
    {"forward-recv", Traffic::message, 3},
    {"backward-send", Traffic::message, 4},
    {"backward-recv", Traffic::message, 5},
    {"params-all-gather", Traffic::collective, 1},
    {"grads-reduce-scatter", Traffic::gradients, 1},
    {"separate-grads-all-reduce", Traffic::gradients, 1},
    {"layernorm-grads-all-reduce", Traffic::gradients, 1},
    {"embedding-grads-all-reduce", Traffic::gradients, 1},
    {"optimizer-clip-main-grad", Traffic::collective, 1},
    {"optimizer", Traffic::none, 0},
    {"gc", Traffic::none, 0},
}};

/// A worker of the pattern.
struct PipelineCell {
  StageId stage;
  int32_t peer = 0;  ///< among the workers of that stage: tensor and context ranks that were seen
};

/// Fills groups and dependencies of `run`; its names are kTypes. Adds notes to run->dropped on
/// messages without a peer.
void add_dependencies(const std::vector<PipelineCell>& cells, MeasuredRun* run);

}  // namespace hocket::whatif::megatron

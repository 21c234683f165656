// SPDX-License-Identifier: Apache-2.0
// Lowers the part of a graph that one class of ranks runs: its stages (stage.h), then the end of
// the step (step.h).
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "parallel/layouts/layouts.h"
#include "parallel/lowering/pipeline.h"
#include "parallel/lowering/pipeline_owners.h"
#include "parallel/lowering/rank_template.h"
#include "program/program.h"

namespace hocket::parallel {

/// The whole graph with its layouts and pipeline, from which every rank is lowered.
struct LoweringInput {
  const graph::Graph& graph;
  const Layouts& layouts;
  const Pipeline& pipeline;
  const PipelineOwners& owners;
};

/// Returns the template of class `cls`, at place `rank` of the pipeline. Adds kinds, groups and
/// tables to the program, which has its roles and classes already. `split_backward`: the schedule
/// has I and W actions.
RankTemplate lower_rank(const LoweringInput& input, int32_t rank, bool split_backward,
                        program::ClassId cls, program::Program& program);

}  // namespace hocket::parallel

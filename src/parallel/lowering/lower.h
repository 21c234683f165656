// SPDX-License-Identifier: Apache-2.0
// Lowering: single-device graph + plan -> program of all ranks. Its steps, in order (lower() does 1
// to 4):
// 1. layouts of all tensors (parallel/layouts/layouts.h);
// 2. the template of every class of ranks (lower_rank.h): the stages (stage.h) and the end of the
//    step (step.h), node by node (node_lowering.h), with reshardings (resharder.h);
// 3. the templates of the plan (template.h), which passes may rewrite;
// 4. the program, stamped per micro-batch in the order of the schedule (stamp.h);
// 5. dependencies and the memory plan (program/finalize.h).
#pragma once

#include "graph/graph.h"
#include "parallel/plan.h"
#include "program/program.h"

namespace hocket::parallel {

/// Lowers a graph of one global micro-batch (forward only, or with backward and optimizer) to a
/// program of one step: steps 1 to 4, without passes.
program::Program lower(const graph::Graph& graph, const Plan& plan);

}  // namespace hocket::parallel

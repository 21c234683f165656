// SPDX-License-Identifier: Apache-2.0
// Lowering: single-device graph + plan -> program of all ranks.
#pragma once

#include "graph/graph.h"
#include "parallel/plan.h"
#include "program/program.h"

namespace hocket::parallel {

/// Lowers a graph of one global micro-batch (forward only, or with backward and optimizer) to a
/// program of one step: its templates (parallel/lowering/template.h), stamped as they are. The
/// result has no dependencies and no memory plan yet: see program::finalize.
program::Program lower(const graph::Graph& graph, const Plan& plan);

}  // namespace hocket::parallel

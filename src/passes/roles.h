// SPDX-License-Identifier: Apache-2.0
// Attention and experts on ranks of their own (MegaScale-Infer, Zhu et al., arXiv 2504.02263;
// DisagMoE, Chen et al., arXiv 2605.11005).
#pragma once

#include "graph/graph.h"
#include "program/program.h"

namespace hocket::passes {

/// Builds a program of two roles from two forward programs of one graph: the ranks of `all` keep
/// everything except routing and experts, which the ranks of `experts` do. Tokens, their experts
/// and weights are transferred to these, and results back. Nothing else of `experts` remains.
/// Requires: both without dependencies and memory plan, of one stage, with the same number of
/// micro-batches. Throws Error for a model without experts, and if a rank of either has an uneven
/// share.
program::Program with_expert_role(const graph::Graph& graph, program::Program all,
                                  program::Program experts);

}  // namespace hocket::passes

// SPDX-License-Identifier: Apache-2.0
// Attention and experts on ranks of their own (MegaScale-Infer, Zhu et al., arXiv 2504.02263;
// DisagMoE, Chen et al., arXiv 2605.11005).
#pragma once

#include "graph/graph.h"
#include "program/program.h"

namespace hocket::passes {

/// One program of two roles from two forward programs of one graph: the ranks of `all` do what they
/// did, but for routing tokens and what experts make of them, which the ranks of `experts` do.
/// Tokens, their experts and weights are given to these, what is made of them comes back. Of
/// `experts` nothing else is left. Both without dependencies and memory plan, of one stage, and as
/// many micro-batches. Throws Error for a model without experts, and where a rank of either has no
/// even share of what is given.
program::Program with_expert_role(const graph::Graph& graph, program::Program all,
                                  program::Program experts);

}  // namespace hocket::passes

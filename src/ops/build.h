// SPDX-License-Identifier: Apache-2.0
// Adding nodes to a graph, for models and autodiff.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "ops/op.h"

namespace hocket::ops {

/// Appends a node of `op` to the graph; types are inferred (Error on a mismatch), outputs are named
/// `name`, `name.1`, …. Returns the outputs.
std::vector<graph::TensorId> apply(graph::Graph& graph, std::string op, graph::Attrs attrs,
                                   std::vector<graph::TensorId> in, std::string name, int32_t layer,
                                   graph::Phase phase = graph::Phase::forward);

/// Makes the gradient of a parameter in the parameter's type instead of the type of sums, by
/// attribute `short_gradient` of its node. Throws Error if the node's op cannot.
void shorten_gradient(graph::Graph& graph, graph::TensorId gradient, graph::DType param);

}  // namespace hocket::ops

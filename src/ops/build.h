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

/// Of a node that makes the gradient of a parameter in the type of its sums: makes it in the type
/// of the parameter (attribute `short_gradient`). Error if the op of the node cannot.
void shorten_gradient(graph::Graph& graph, graph::TensorId gradient, graph::DType param);

}  // namespace hocket::ops

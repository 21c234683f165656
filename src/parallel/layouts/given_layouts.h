// SPDX-License-Identifier: Apache-2.0
// How what no node makes lies on the mesh, before any layout is chosen: inputs, parameters, states.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"

namespace hocket::parallel {

/// By tensor; of what nodes make: whole. Inputs of a micro-batch are split by tokens (unless
/// these are a symbol that the ranks do not divide), tensors of experts over ep. Over tp are split
/// the parameters that some op goes along by position (the vocabulary, of embedding and head), and
/// those that make or sum over a dim which no op between needs whole, if it divides (heads, the
/// width of an MLP). `pins` (parallel/layouts/pins.h) have the last word. What an optimizer keeps
/// for a parameter lies as the parameter, unless PinnedTensors::updates says otherwise. Throws
/// Error: a pin that is none, that its tensors cannot have, or that matches none of a training.
std::vector<graph::Layout> stored_layouts(const graph::Graph& graph, const graph::Mesh& mesh,
                                          const std::vector<std::string>& pins);

/// "NAME tp:S0" for every parameter that some op goes along by position: pins for graphs of the
/// same model in which no op does.
std::vector<std::string> positional_pins(const graph::Graph& graph);

}  // namespace hocket::parallel

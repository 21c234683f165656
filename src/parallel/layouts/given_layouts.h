// SPDX-License-Identifier: Apache-2.0
// Layouts of the tensors that no node produces: inputs, parameters, optimizer states.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"

namespace hocket::parallel {

/// Returns the layouts by tensor; tensors that nodes produce are whole.
/// - Inputs of a micro-batch are split by token, unless the number of tokens is a symbol that the
///   ranks do not divide.
/// - Tensors of experts are split over ep.
/// - Over tp: parameters that some op indexes by position (the vocabulary, of embedding and head).
/// - Over tp, if it divides: parameters that produce or sum over a dim which no op in between needs
///   whole (heads, the width of an MLP).
/// - `pins` (pins.h) override all rules above.
/// - An optimizer state has its parameter's layout, unless PinnedTensors::updates has another.
/// Throws Error for a malformed pin, a pin that its tensors cannot have, or one that matches no
/// tensor of a training.
std::vector<graph::Layout> stored_layouts(const graph::Graph& graph, const graph::Mesh& mesh,
                                          const std::vector<std::string>& pins);

/// Returns "NAME tp:S0" for every parameter that some op indexes by position: pins for graphs of
/// the same model in which no op does.
std::vector<std::string> positional_pins(const graph::Graph& graph);

}  // namespace hocket::parallel

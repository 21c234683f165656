// SPDX-License-Identifier: Apache-2.0
// How what no node makes lies on the mesh, before any layout is chosen: inputs, parameters, states.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"

namespace hocket::parallel {

/// By tensor; of what nodes make: whole. Inputs of a micro-batch are split by tokens (unless
/// these are a symbol that the ranks do not divide), tensors of experts over ep. Over tp are split
/// the parameters that some op goes along by position (the vocabulary, of embedding and head), and
/// those that make or sum over a dim which no op between needs whole, if it divides (heads, the
/// width of an MLP). `pins` have the last word: "PATTERN LAYOUT" each, where the parameters and
/// inputs whose names match the pattern (`*`, `?`) are split as the layout says on the axes that it
/// names, whole along an axis for `axis:B` and along all for `B`; of several pins that match, the
/// last counts. What an optimizer keeps for a parameter lies as the parameter, unless
/// PinnedTensors::updates says otherwise. Throws Error: a pin that is none, that its tensors cannot
/// have, or that matches none of a training.
std::vector<graph::Layout> stored_layouts(const graph::Graph& graph, const graph::Mesh& mesh,
                                          const std::vector<std::string>& pins);

/// How a pin says that a tensor lies: on the axes that it names.
struct Pinned {
  graph::Layout layout;
  std::vector<bool> axes;
  std::string text = {};  ///< the pin
};

struct PinnedTensors {
  /// By tensor: every node that reads what a forward or backward node makes finds it so, an input
  /// comes so, and of a parameter plan.shard leaves alone how it lies along the axes that are
  /// named.
  std::map<graph::TensorId, Pinned> tensors;
  /// By parameter, pins of its states and its gradient: how all these lie where it is updated.
  std::map<graph::TensorId, Pinned> updates;
};
PinnedTensors pinned_tensors(const graph::Graph& graph, const graph::Mesh& mesh,
                             const std::vector<std::string>& pins);

/// "" without pins, or what ends the message of an error that may be theirs.
std::string said_of_pins(const std::vector<std::string>& pins);

/// "NAME tp:S0" for every parameter that some op goes along by position: pins for graphs of the
/// same model in which no op does.
std::vector<std::string> positional_pins(const graph::Graph& graph);

}  // namespace hocket::parallel

// SPDX-License-Identifier: Apache-2.0
// Pinned layouts of single tensors (plan.layouts), each "PATTERN LAYOUT". Tensors with a name that
// matches the pattern (`*`, `?`) are split as the layout says on its axes. They are whole along an
// axis for `axis:B`, and along all axes for `B`. The last matching pin counts.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"

namespace hocket::parallel {

/// A pinned layout, on the axes that the pin names.
struct Pinned {
  graph::Layout layout;
  std::vector<bool> axes;
  std::string text = {};  ///< of the pin
};

struct PinnedTensors {
  /// By tensor. An activation has the pinned layout for every node that reads it, and an input
  /// arrives in it. plan.shard leaves a parameter alone along the pinned axes.
  std::map<graph::TensorId, Pinned> tensors;
  /// By parameter: pin of its states and its gradient, the layout in which it is updated.
  std::map<graph::TensorId, Pinned> updates;
};
PinnedTensors pinned_tensors(const graph::Graph& graph, const graph::Mesh& mesh,
                             const std::vector<std::string>& pins);

/// Sets the layouts of pinned parameters and inputs along the axes that the pins name. Returns
/// these tensors. Throws Error for a malformed pin, a pin that its tensors cannot have, or one that
/// matches no tensor of a training.
std::set<graph::TensorId> pin_stored(const graph::Graph& graph, const graph::Mesh& mesh,
                                     const std::vector<std::string>& pins,
                                     std::vector<graph::Layout>* layouts);

/// Returns the reason why the tensor cannot have the layout, or "". Axes of tp, and of ep for
/// experts, need not divide a dim; other splits are put together again from equal parts, so they
/// must.
std::string why_not(const graph::Tensor& tensor, const graph::Layout& layout,
                    const graph::Mesh& mesh);

/// Returns the end of an error message that pins may have caused, or "" without pins.
std::string said_of_pins(const std::vector<std::string>& pins);

}  // namespace hocket::parallel

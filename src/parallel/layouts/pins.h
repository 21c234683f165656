// SPDX-License-Identifier: Apache-2.0
// What a plan says of how single tensors lie (plan.layouts): "PATTERN LAYOUT" each, where the
// tensors whose names match the pattern (`*`, `?`) are split as the layout says on the axes that it
// names, whole along an axis for `axis:B` and along all for `B`; of several pins that match, the
// last counts.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"

namespace hocket::parallel {

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

/// Lays the parameters and inputs that pins match as these say, and along axes that they do not
/// name as `layouts` have it. Returns these tensors. Throws Error: a pin that is none, that its
/// tensors cannot have, or that matches none of a training.
std::set<graph::TensorId> pin_stored(const graph::Graph& graph, const graph::Mesh& mesh,
                                     const std::vector<std::string>& pins,
                                     std::vector<graph::Layout>* layouts);

/// "" or why the tensor cannot lie so. Axes of tp, and of ep for experts, need not divide it; what
/// others split is put together again from parts of one size.
std::string why_not(const graph::Tensor& tensor, const graph::Layout& layout,
                    const graph::Mesh& mesh);

/// "" without pins, or what ends the message of an error that may be theirs.
std::string said_of_pins(const std::vector<std::string>& pins);

}  // namespace hocket::parallel

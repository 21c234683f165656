// SPDX-License-Identifier: Apache-2.0
// Chooses the layout of every tensor of a graph: what is stored lies as it is told to
// (parallel/stored.h), and every node takes the legal signature whose inputs are cheapest to
// reshard to, or gives way to the graph that defines its op.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"
#include "parallel/plan.h"
#include "parallel/reshard.h"

namespace hocket::parallel {

struct NodeLayouts {
  std::vector<graph::Layout> in;  ///< wanted, per input (accumulators included)
};

struct Layouts {
  /// The graph that is lowered, if it is not the one that came: nodes whose op is better done by
  /// its definition are the nodes of that, with tensors of their own behind those that there were.
  std::optional<graph::Graph> unfolded;
  std::vector<graph::NodeId> origin;  ///< by node: the node that it was, if there is `unfolded`
  std::vector<graph::Layout> tensor;  ///< as produced; of a parameter, as forward nodes use it
  /// Where a tensor stays that outlives what makes and reads it: a parameter or state between its
  /// uses, a contribution to a gradient while micro-batches add to it. Of all others, as produced.
  std::vector<graph::Layout> lies;
  /// By gradient: of its total, and of the parameter and its states, when the parameter is updated.
  std::vector<graph::Layout> update;
  std::vector<NodeLayouts> node;
  /// Counts tensor that a routed tensor's rows belong to, or kNone.
  std::vector<graph::TensorId> counts_of;
  /// By axis: what forward nodes gather over it they give up again, and backward nodes gather it
  /// anew, so that only a part of it is there between them.
  std::vector<bool> gathers_again;
  bool reshard_after_forward = true;  ///< see Sharding
};

/// What a plan says of how activations lie.
struct ActivationLayouts {
  /// Sums of activations over tp are scattered by token, and gathered where a product needs all
  /// (Korthikanti et al., arXiv 2205.05198).
  bool sequence_parallel = false;
  /// Where attention needs all tokens of a sequence, ranks of cp give each other heads for tokens
  /// (all_to_all) instead of gathering keys (DeepSpeed Ulysses, arXiv 2309.14509).
  bool exchange_heads = false;
};

/// `pins`: see stored_layouts.
Layouts choose_layouts(const graph::Graph& graph, const graph::Mesh& mesh,
                       const std::vector<std::string>& pins, const Sharding& sharding,
                       const ActivationLayouts& activations);

/// The layout of a parameter that lies in this one, when the data-parallel ranks that have it alike
/// split it, all of them or those of a group: the innermost axes together along the first dim that
/// they divide, the others, if it is too much for that, along other dims. Axes that divide no dim
/// leave it whole, and so does `sharding` of what is small. The innermost axis of the mesh cuts
/// first: what crosses the links between distant ranks, gathered or scattered, is then the smallest
/// part, and what a rank has if all split it is a part of what it has if its group does.
graph::Layout sharded(const graph::TensorType& type, graph::Layout layout, const graph::Mesh& mesh,
                      const Sharding& sharding, Shard among);

/// Whether what is split among these ranks may be split along the axis.
bool may_split(size_t axis, const graph::Mesh& mesh, const Sharding& sharding, Shard among);

/// The layout of the sum of what is partial in `layout`.
graph::Layout summed(graph::Layout layout, const graph::Mesh& mesh);

/// What the cheapest path of a tensor from one placement to another costs, on a mesh of one axis;
/// infinity if there is none. `bytes` receives what passes through a rank's link.
double reshard_cost(graph::TensorType type, graph::Placement from, graph::Placement to,
                    ReshardPaths* axis, double* bytes = nullptr);

}  // namespace hocket::parallel

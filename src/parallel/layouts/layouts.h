// SPDX-License-Identifier: Apache-2.0
// Chooses the layout of every tensor of a graph: what is stored lies as it is told to
// (parallel/layouts/given_layouts.h), and nodes take the legal signatures that cost least over the
// whole graph, or give way to the graph that defines their op.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"
#include "parallel/layouts/pins.h"
#include "parallel/layouts/reshard.h"
#include "parallel/plan.h"

namespace hocket::parallel {

struct NodeLayouts {
  std::vector<graph::Layout> in;   ///< wanted, per input (accumulators included)
  std::vector<int32_t> signature;  ///< by axis: which of ops::signatures
};

/// What layouts move and take, see layout_cost.h.
struct LayoutCost {
  double total = 0;                  ///< infinity if something can't be brought
  double bytes_per_micro_batch = 0;  ///< through a rank's link, of activations and gradients
  double bytes_per_step = 0;         ///< of gradients, at its end
};
/// Of layouts where the choice over the whole graph is another than node by node.
struct LayoutsSaved {
  LayoutCost by_node, chosen;
};

struct Layouts {
  /// The graph that is lowered, if it is not the one that came: nodes whose op is better done by
  /// its definition are the nodes of that, with tensors of their own behind those that there were.
  std::optional<graph::Graph> unfolded;
  std::vector<graph::NodeId> origin;  ///< by node: the node that it was, if there is `unfolded`
  std::vector<graph::Layout> tensor;  ///< as produced; of a parameter, as forward nodes use it
  /// Where a tensor stays that outlives what makes and reads it: a parameter or state between its
  /// uses, a contribution to a gradient while micro-batches add to it. Of all others, as produced.
  std::vector<graph::Layout> storage;
  /// By gradient: of its total, and of the parameter and its states, when the parameter is updated.
  std::vector<graph::Layout> update;
  std::vector<NodeLayouts> node;
  /// Counts tensor that a routed tensor's rows belong to, or kNone.
  std::vector<graph::TensorId> counts_of;
  /// By axis: what forward nodes gather over it they give up again, and backward nodes gather it
  /// anew, so that only a part of it is there between them.
  std::vector<bool> gathers_again;
  bool reshard_after_forward = true;   ///< see Sharding
  bool reshard_after_backward = true;  ///< see Sharding
  std::optional<LayoutsSaved> saved;
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

/// Which tokens of a micro-batch ranks have, where that is not as even as they divide them.
struct TokenShares {
  std::vector<int64_t> samples = {};   ///< Plan::dp_samples
  std::vector<int64_t> along_cp = {};  ///< Plan::cp_shares
};

/// What is decided before: how what is stored lies, by tensor (stored_layouts), the tensors of
/// which the plan says how they lie (pinned_tensors), and what the plan says of sharding,
/// activations and tokens.
struct LayoutsGiven {
  std::vector<graph::Layout> stored;
  PinnedTensors pinned;
  Sharding sharding;
  ActivationLayouts activations;
  TokenShares tokens = {};
};

/// What is done once in a step counts as a part of each of `num_micro_batches`. Error: a node has
/// no legal layout.
Layouts choose_layouts(const graph::Graph& graph, const graph::Mesh& mesh,
                       const LayoutsGiven& given, int64_t num_micro_batches);

/// Greedy: each node in turn takes the signature whose inputs are cheapest to bring there.
Layouts layouts_by_node(const graph::Graph& graph, const graph::Mesh& mesh,
                        const LayoutsGiven& given);

/// The layouts if all nodes take these signatures, and none gives way to others; nothing if they
/// are not legal together.
std::optional<Layouts> layouts_with(const graph::Graph& graph, const graph::Mesh& mesh,
                                    const LayoutsGiven& given,
                                    const std::vector<NodeLayouts>& signatures);

/// The layout of a parameter that lies in this one, when the data-parallel ranks that have it alike
/// split it, all of them or those of a group: along the first dim that they divide together, or the
/// innermost axes along one and the others along another; where they divide none, along one of
/// which each has about as much as each other. Axes of more ranks than any dim has indices leave it
/// whole, and so does `sharding` of what is small. The innermost axis of the mesh cuts first: what
/// crosses the links between distant ranks, gathered or scattered, is then the smallest part, and
/// what a rank has if all split it is a part of what it has if its group does.
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

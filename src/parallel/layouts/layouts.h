// SPDX-License-Identifier: Apache-2.0
// Layouts of all tensors of a graph on a mesh. Inputs, parameters and states have given layouts
// (given_layouts.h). Each node takes the legal signature that minimises the total cost over the
// graph, or is replaced by its op's definition where that is cheaper.
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
  std::vector<graph::Layout> in;   ///< that the node reads, per input (accumulators included)
  std::vector<int32_t> signature;  ///< by axis: index into ops::signatures
};

/// Cost of layouts, see layout_cost.h.
struct LayoutCost {
  double total = 0;                  ///< infinity if some resharding is impossible
  double bytes_per_micro_batch = 0;  ///< over a rank's link: activations, gradients
  double bytes_per_step = 0;         ///< over a rank's link: gradients, at its end
};
/// Costs before and after, where the choice over the whole graph differs from the choice node by
/// node.
struct LayoutsSaved {
  LayoutCost by_node, chosen;
};

struct Layouts {
  /// Graph that is lowered, if it differs from the given one: some nodes are replaced by their op's
  /// definition. New tensors follow those of the given graph.
  std::optional<graph::Graph> decomposed;
  std::vector<graph::NodeId> origin;  ///< by node of `decomposed`: the node it comes from
  std::vector<graph::Layout> tensor;  ///< as produced; of a parameter, as forward nodes use it
  /// Layout of a tensor between its uses: of a parameter or state, and of a contribution to a
  /// gradient while micro-batches add to it. For all others the layout as produced.
  std::vector<graph::Layout> storage;
  /// By gradient: layout of its total, of the parameter and of its states, during the update.
  std::vector<graph::Layout> update;
  std::vector<NodeLayouts> node;
  /// By tensor: counts tensor of a routed tensor's rows, or kNone.
  std::vector<graph::TensorId> counts_of;
  /// By axis: forward nodes drop the tensors that they gather over it and backward nodes gather
  /// them again. In between a rank holds only its part.
  std::vector<bool> gathers_again;
  bool reshard_after_forward = true;   ///< see Sharding
  bool reshard_after_backward = true;  ///< see Sharding
  std::optional<LayoutsSaved> saved;
};

/// Layouts of activations, as the plan asks for them.
struct ActivationLayouts {
  /// Sequence parallelism: sums of activations over tp are reduce-scattered by token, and gathered
  /// where a product needs all tokens (Korthikanti et al., arXiv 2205.05198).
  bool sequence_parallel = false;
  /// All-to-all over cp of heads for tokens where attention needs all tokens of a sequence, instead
  /// of gathering keys (DeepSpeed Ulysses, arXiv 2309.14509).
  bool exchange_heads = false;
};

/// Uneven shares of a micro-batch's tokens; empty where ranks share them as evenly as they divide.
struct TokenShares {
  std::vector<int64_t> samples = {};   ///< Plan::dp_samples
  std::vector<int64_t> along_cp = {};  ///< Plan::cp_shares
};

/// Decisions that come before the choice: the layouts of stored tensors (stored_layouts), the
/// pinned tensors (pinned_tensors), and the plan's sharding, activation layouts and token shares.
struct LayoutsGiven {
  std::vector<graph::Layout> stored;
  PinnedTensors pinned;
  Sharding sharding;
  ActivationLayouts activations;
  TokenShares tokens = {};
};

/// Chooses the layouts of a graph. Work done once per step counts 1/num_micro_batches. Throws Error
/// if a node has no legal layout.
Layouts choose_layouts(const graph::Graph& graph, const graph::Mesh& mesh,
                       const LayoutsGiven& given, int64_t num_micro_batches);

/// Chooses greedily: each node takes the signature with the cheapest resharding of its inputs.
Layouts layouts_by_node(const graph::Graph& graph, const graph::Mesh& mesh,
                        const LayoutsGiven& given);

/// Returns the layouts if all nodes take these signatures and none is replaced by its definition,
/// or nothing if the signatures are not legal together.
std::optional<Layouts> layouts_with(const graph::Graph& graph, const graph::Mesh& mesh,
                                    const LayoutsGiven& given,
                                    const std::vector<NodeLayouts>& signatures);

/// Returns the layout of a parameter when data-parallel ranks that have equal copies split it: all
/// of them, or those of a group. They split the first dim that they divide together, or the
/// innermost axes split one dim and the others another. Where they divide no dim, they split one in
/// shares that are nearly equal. A parameter stays whole along axes with more ranks than any of its
/// dims has indices, and if `sharding` excludes it as small. The innermost axis of the mesh cuts
/// first. Then the traffic between distant ranks, gathered or scattered, is the smallest part. A
/// rank's part among all ranks also lies in its part within its group.
graph::Layout sharded(const graph::TensorType& type, graph::Layout layout, const graph::Mesh& mesh,
                      const Sharding& sharding, Shard among);

/// Returns whether tensors that are split among these ranks may be split along the axis.
bool may_split(size_t axis, const graph::Mesh& mesh, const Sharding& sharding, Shard among);

/// Returns the layout with all partial placements summed.
graph::Layout summed(graph::Layout layout, const graph::Mesh& mesh);

/// Returns the cost of the cheapest path of a tensor between two placements on a mesh of one axis,
/// or infinity. Writes the bytes over a rank's link to `bytes`.
double reshard_cost(graph::TensorType type, graph::Placement from, graph::Placement to,
                    ReshardPaths* axis, double* bytes = nullptr);

}  // namespace hocket::parallel

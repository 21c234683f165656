// SPDX-License-Identifier: Apache-2.0
// Legal signatures of a node on an axis, given the layouts of its inputs, and the cost of
// resharding these. Used by the choice node by node (layouts.cc) and over the whole graph
// (layout_problem.h).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "parallel/layouts/layouts.h"
#include "parallel/layouts/shares.h"

namespace hocket::parallel {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns the number of a node's inputs without accumulators.
inline size_t num_inputs(const graph::Node& node) {
  return node.in.size() - node.accumulate.size();
}

/// Layouts chosen so far, node by node in the graph's order: `begin` a node, query it, and `place`
/// its outputs. Queries are about one axis at a time.
class LayoutRules {
 public:
  LayoutRules(const graph::Graph& graph, const graph::Mesh& mesh, const LayoutsGiven& given);

  const graph::Graph& graph() const { return *graph_; }
  const graph::Mesh& mesh() const { return mesh_; }
  const Sharding& sharding() const { return sharding_; }
  const graph::Tensor& tensor(graph::TensorId id) const { return graph_->tensor(id); }
  /// Resizes the tables to a graph that has gained or lost tensors at its end.
  void grown(const graph::Graph& graph);

  /// Returns the layouts by tensor: as produced; of a parameter, as forward nodes read it.
  const std::vector<graph::Layout>& layouts() const { return layouts_; }
  /// Returns Layouts::update, by gradient.
  const std::vector<graph::Layout>& updates() const { return update_; }
  /// Returns the parameter with a gradient that the tensor contributes to, or kNone.
  graph::TensorId param_of(graph::TensorId id) const { return param_of_[id]; }
  /// Returns the gradient (index into Graph::grads) with an update that uses the tensor, or kNone.
  int32_t updated(graph::TensorId id) const { return updated_[id]; }
  /// Returns the layout in which a contribution to a gradient accumulates over micro-batches: split
  /// as plan.shard splits gradients, and as produced along the other axes, where the parts are
  /// summed once, at the end.
  graph::Layout accumulation_layout(graph::TensorId contribution) const;
  /// Returns the layout of a parameter, split further as plan.shard says, except along pinned axes.
  graph::Layout sharded_param(graph::TensorId param, const graph::Layout& stored,
                              Shard among) const;
  /// Returns whether a pin sets the placement of an activation on the axis.
  bool is_pinned(graph::TensorId id, size_t axis) const;
  /// Returns the pins of tensors that a node reads or makes, quoted for messages.
  std::string pins_at(const graph::Node& node) const;
  /// Returns whether the axis has more than one rank and is not the pipeline's.
  bool is_used(size_t axis) const {
    return mesh_.axes[axis].size > 1 && mesh_.axes[axis].name != kStageAxis;
  }

  /// Makes this the current node of the queries that follow.
  void begin(const graph::Node& node);
  /// Returns the layout in which the current node finds a tensor. Optimizer nodes find parameters,
  /// states and total gradients in the layout of the update, and contributions in the layout of
  /// their accumulator.
  const graph::Layout& found(graph::TensorId id) const;
  std::vector<ops::AxisSignature> signatures(const graph::Node& node) const;
  /// Returns the order in which axes are chosen: outermost first. An update follows the order in
  /// which its operands are split. Heads that ranks of cp exchange are split over tp first.
  std::vector<size_t> order_of_axes(const graph::Node& node) const;
  /// Returns whether the signature is legal, given that all inputs can be resharded. `wanted`: on
  /// the axes that were chosen before this one.
  bool may_take(const graph::Node& node, const ops::AxisSignature& signature,
                const NodeLayouts& wanted, size_t axis);
  /// Returns the cost of resharding the inputs, plus later costs of the outputs as far as they are
  /// known here; infinity if impossible. Reshardings noted by note_resharded are free.
  double cost_of(const graph::Node& node, const ops::AxisSignature& signature, size_t axis);
  /// Returns the cost of resharding a tensor, or infinity. Persistent tensors keep their layouts.
  double cost_to_reshard(graph::TensorId id, graph::Placement to, size_t axis);
  /// Returns the bytes over a rank's link. Requires: cost_to_reshard is finite.
  double bytes_to_reshard(graph::TensorId id, graph::Placement to, size_t axis);
  bool is_supported(graph::TensorId id, size_t axis) const {
    return (supported_[id] >> axis & 1) != 0;
  }

  /// Returns the layout with the sizes of its blocks, where shares are uneven.
  graph::Layout with_sizes(graph::TensorId id, const graph::Layout& layout) const {
    return shares_.given(*graph_, id, layout);
  }

  /// Places the outputs as the signature says.
  void place(const graph::Node& node, const ops::AxisSignature& signature, size_t axis);
  void place(graph::TensorId id, graph::Placement placed, bool supported, size_t axis);
  void put(graph::TensorId id, const graph::Layout& layout) { layouts_[id] = layout; }
  /// Returns whether the output is a partial sum that needs only some indices of its letter
  /// (ops::Support). A rank then has the complete sum for some elements, so nothing may be computed
  /// from the parts before they are added up.
  static bool supports(const graph::Node& node, const ops::AxisSignature& signature, size_t output);
  /// Assigns to every routed output of the node the counts tensor with the rows of each expert.
  void follow_rows(const graph::Node& node);
  /// Returns by tensor the counts tensor of a routed tensor's rows, or kNone.
  const std::vector<graph::TensorId>& counts_of() const { return counts_of_; }

  /// Notes a resharding, so that the next reader of the tensor finds it done.
  void note_resharded(graph::TensorId id, graph::Placement to, size_t axis);
  size_t num_noted() const { return log_.size(); }
  /// Drops all notes after the first `noted`.
  void forget(size_t noted);

 private:
  void share_updates();
  graph::Layout updated_as(graph::TensorId param, graph::Layout layout) const;
  bool may_be(const graph::Node& node, const ops::AxisSignature& signature, size_t axis) const;
  bool begins_no_split(const graph::Node& node, const ops::AxisSignature& signature,
                       size_t axis) const;
  bool lacks_keys(const graph::Node& node, const ops::AxisSignature& signature,
                  const NodeLayouts& wanted, size_t axis) const;
  size_t next_axis(const graph::Node& node, const std::vector<size_t>& axes) const;
  bool exchanges_heads(const graph::Node& node) const;
  bool has_exchanged_heads(const graph::Node& node) const;
  bool is_of_parameters(graph::NodeId node) const;
  bool splits_tokens_of_heads(const graph::Node& node, const ops::AxisSignature& signature) const;
  bool splits_as_before(const graph::Node& node, const ops::AxisSignature& signature,
                        size_t axis) const;
  double cost_after(const graph::Node& node, size_t output, graph::Placement placed, bool passes_on,
                    size_t axis);
  bool may_scatter(graph::TensorId id, int dim, size_t axis) const;
  bool all_have(graph::TensorId id) const;
  bool is_resharded(graph::TensorId id, graph::Placement to, size_t axis) const;
  std::vector<graph::TensorType> types_of(const std::vector<graph::TensorId>& ids,
                                          size_t count) const;

  const graph::Graph* graph_;
  const graph::Mesh& mesh_;
  const Shares shares_;
  const Sharding sharding_;
  const ActivationLayouts activations_;
  const PinnedTensors pinned_;
  bool in_step_ = false;                // the current node is the optimizer's
  bool at_pin_ = false;                 // an input of the current node is pinned on the axis
  std::vector<graph::Layout> layouts_;  // by tensor
  std::vector<graph::Layout> update_;   // by gradient
  std::vector<ReshardPaths> paths_;     // per axis, as a mesh of its own
  std::vector<graph::TensorId> param_of_;
  std::map<graph::TensorId, graph::Layout> accumulation_layouts_;  // contributions to gradients
  std::vector<int32_t> updated_;
  std::vector<graph::TensorId> counts_of_;
  std::vector<graph::TensorId> counts_of_rows_;  // by row_of tensor: counts of its routing
  std::vector<uint32_t> supported_;              // by tensor: axes, as bits
  /// By tensor: axes and placements to which it was resharded; `log_` has the order of all.
  std::vector<std::vector<std::pair<size_t, graph::Placement>>> resharded_;
  std::vector<graph::TensorId> log_;
};

}  // namespace hocket::parallel

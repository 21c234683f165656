// SPDX-License-Identifier: Apache-2.0
// Which signatures of a node are legal on an axis, given where its inputs lie, and what it costs to
// bring these there: what both the choice node by node (layouts.cc) and the choice over the whole
// graph (layout_problem.h) go by.
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

/// Inputs of a node that are not added to.
inline size_t num_inputs(const graph::Node& node) {
  return node.in.size() - node.accumulate.size();
}

/// Knows how tensors lie as far as that has been chosen, node by node in the graph's order: `begin`
/// a node, ask, and `place` its outputs. Axes are asked for one at a time.
class LayoutRules {
 public:
  LayoutRules(const graph::Graph& graph, const graph::Mesh& mesh, const LayoutsGiven& given);

  const graph::Graph& graph() const { return *graph_; }
  const graph::Mesh& mesh() const { return mesh_; }
  const Sharding& sharding() const { return sharding_; }
  const graph::Tensor& tensor(graph::TensorId id) const { return graph_->tensor(id); }
  /// The graph has other tensors behind those that it had, or lost some of them.
  void grown(const graph::Graph& graph);

  /// By tensor, as produced; of a parameter, as forward nodes use it.
  const std::vector<graph::Layout>& layouts() const { return layouts_; }
  /// By gradient, see Layouts::update.
  const std::vector<graph::Layout>& updates() const { return update_; }
  /// The parameter to whose gradient a tensor is a contribution, or kNone.
  graph::TensorId param_of(graph::TensorId id) const { return param_of_[id]; }
  /// The gradient (Graph::grads) in whose update a tensor takes part, or kNone.
  int32_t updated(graph::TensorId id) const { return updated_[id]; }
  /// Where a contribution to a gradient adds up micro-batch by micro-batch: split as plan.shard
  /// says of gradients, and as it is made over the axes that do not split it then, parts of a sum
  /// that is taken once, at the end.
  graph::Layout added_up(graph::TensorId contribution) const;
  /// A parameter that lies so, split further as plan.shard says, but along axes that a pin names.
  graph::Layout sharded_param(graph::TensorId param, const graph::Layout& stored,
                              Shard among) const;
  /// Whether the plan says how an activation lies along the axis.
  bool is_pinned(graph::TensorId id, size_t axis) const;
  /// The pins of tensors that a node reads or makes, quoted; for messages.
  std::string pins_at(const graph::Node& node) const;
  /// Axes of several ranks, but for the pipeline's.
  bool is_used(size_t axis) const {
    return mesh_.axes[axis].size > 1 && mesh_.axes[axis].name != kStageAxis;
  }

  /// The questions that follow are about this node.
  void begin(const graph::Node& node);
  /// Where the node at hand finds a tensor. Those of the optimizer find parameters, states and the
  /// totals of gradients where the update is, and contributions to gradients where they were added
  /// up.
  const graph::Layout& found(graph::TensorId id) const;
  std::vector<ops::AxisSignature> signatures(const graph::Node& node) const;
  /// In which they are chosen: outermost first. An update has what it updates in the order in which
  /// that is split; heads that ranks of cp exchange are split over tp before.
  std::vector<size_t> order_of_axes(const graph::Node& node) const;
  /// Whether the node may take the signature, if all inputs can be brought; `wanted`: on the axes
  /// that were chosen before this one.
  bool may_take(const graph::Node& node, const ops::AxisSignature& signature,
                const NodeLayouts& wanted, size_t axis);
  /// What it costs to bring the inputs, and what the outputs cost later as far as the node can
  /// tell; infinity if that cannot be. What was noted as brought costs nothing.
  double cost_of(const graph::Node& node, const ops::AxisSignature& signature, size_t axis);
  /// Persistent tensors stay where the plan put them.
  double cost_to_bring(graph::TensorId id, graph::Placement to, size_t axis);
  /// Of what can be brought.
  double bytes_to_bring(graph::TensorId id, graph::Placement to, size_t axis);
  bool is_supported(graph::TensorId id, size_t axis) const {
    return (supported_[id] >> axis & 1) != 0;
  }

  /// The layout with the sizes of its blocks, where ranks have unlike parts.
  graph::Layout with_sizes(graph::TensorId id, const graph::Layout& layout) const {
    return shares_.given(*graph_, id, layout);
  }

  /// The outputs lie as the signature says.
  void place(const graph::Node& node, const ops::AxisSignature& signature, size_t axis);
  void place(graph::TensorId id, graph::Placement placed, bool supported, size_t axis);
  void put(graph::TensorId id, const graph::Layout& layout) { layouts_[id] = layout; }
  /// Whether the output is parts of a sum that needs only some indices of its letter (Support):
  /// ranks have the whole sum for some of their elements, so nothing is computed of them before
  /// they are added up.
  static bool supports(const graph::Node& node, const ops::AxisSignature& signature, size_t output);
  /// Every routed tensor learns which counts tensor says how many rows each expert has.
  void follow_rows(const graph::Node& node);
  /// Counts tensor that a routed tensor's rows belong to, or kNone, by tensor.
  const std::vector<graph::TensorId>& counts_of() const { return counts_of_; }

  /// Who asks for it again finds it there.
  void note_brought(graph::TensorId id, graph::Placement to, size_t axis);
  size_t num_noted() const { return log_.size(); }
  /// What was noted since so many were.
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
  bool is_brought(graph::TensorId id, graph::Placement to, size_t axis) const;
  std::vector<graph::TensorType> types_of(const std::vector<graph::TensorId>& ids,
                                          size_t count) const;

  const graph::Graph* graph_;
  const graph::Mesh& mesh_;
  const Shares shares_;
  const Sharding sharding_;
  const ActivationLayouts activations_;
  const PinnedTensors pinned_;
  bool in_step_ = false;  // the node at hand is the optimizer's
  bool at_pin_ = false;   // the plan says how an input of the node at hand lies on the axis at hand
  std::vector<graph::Layout> layouts_;  // by tensor
  std::vector<graph::Layout> update_;   // by gradient
  std::vector<ReshardPaths> paths_;     // per axis, as a mesh of its own
  std::vector<graph::TensorId> param_of_;
  std::map<graph::TensorId, graph::Layout> added_up_;  // contributions to gradients
  std::vector<int32_t> updated_;
  std::vector<graph::TensorId> counts_of_;
  std::vector<graph::TensorId> counts_of_rows_;  // by row_of: counts of the same routing
  std::vector<uint32_t> supported_;              // by tensor: axes, as bits
  /// By tensor: axes and placements that it was brought to; the order of all of them.
  std::vector<std::vector<std::pair<size_t, graph::Placement>>> brought_;
  std::vector<graph::TensorId> log_;
};

}  // namespace hocket::parallel

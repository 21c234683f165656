// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/op.h"
#include "parallel/plan.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Mesh;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Layout initial_layout(const graph::Tensor& tensor, const Mesh& mesh) {
  Layout layout;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const std::string& name = mesh.axes[axis].name;
    if (mesh.axes[axis].size == 1 || name == kStageAxis) continue;
    if (tensor.kind == TensorKind::input && !tensor.per_step) {
      layout.set(axis, Placement::split(0));
    }
    if (tensor.expert && name == "ep") {
      layout.set(axis, Placement::split(0));
    }
  }
  return layout;
}

/// Greedy, node by node in the graph's order, and for every mesh axis by itself: among the layouts
/// that the op allows on that axis, the one whose inputs cost least to bring there from where they
/// lie; it also says how the outputs lie. Parameters stay where the plan put them, so the choice is
/// always "move the activation". A node that makes a gradient may only choose what can be reduced
/// to the layout of its parameter.
class LayoutChoice {
 public:
  LayoutChoice(const Graph& graph, const Mesh& mesh)
      : graph_(graph),
        mesh_(mesh),
        param_of_(graph.tensors.size(), kNone),
        counts_of_rows_(graph.tensors.size(), kNone) {
    result_.counts_of.assign(graph.tensors.size(), kNone);
    for (const graph::Tensor& tensor : graph.tensors) {
      result_.tensor.push_back(initial_layout(tensor, mesh));
    }
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      paths_.emplace_back(Mesh{{mesh.axes[axis]}});
    }
    for (const auto& grad : graph.grads) {
      for (TensorId id : grad.contributions) {
        param_of_[id] = grad.param;
      }
    }
  }

  Layouts run() {
    for (const graph::Node& node : graph_.nodes) {
      place(node);
      follow_rows(node);
    }
    return std::move(result_);
  }

 private:
  /// Inputs that are not added to.
  static size_t num_inputs(const graph::Node& node) {
    return node.in.size() - node.accumulate.size();
  }

  std::vector<ops::AxisSignature> signatures(const graph::Node& node) const {
    std::vector<TensorType> in;
    std::vector<TensorType> out;
    for (size_t i = 0; i < num_inputs(node); ++i) {
      in.push_back(graph_.tensor(node.in[i]).type);
    }
    for (TensorId id : node.out) {
      out.push_back(graph_.tensor(id).type);
    }
    return ops::signatures(ops::find(node.op), in, out);
  }

  /// The layouts of a node: on every axis its cheapest signature. What it adds to lies as what it
  /// adds.
  void place(const graph::Node& node) {
    const std::vector<ops::AxisSignature> all = signatures(node);
    NodeLayouts wanted;
    wanted.in.resize(node.in.size());
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (mesh_.axes[axis].size == 1 || mesh_.axes[axis].name == kStageAxis) continue;
      const ops::AxisSignature& best = cheapest(node, all, axis);
      for (size_t i = 0; i < num_inputs(node); ++i) {
        wanted.in[i].set(axis, best.in[i]);
      }
      for (size_t output = 0; output < node.out.size(); ++output) {
        result_.tensor[node.out[output]].set(axis, best.out[output]);
      }
    }
    size_t accumulator = num_inputs(node);
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (node.accumulate.contains(output)) {
        wanted.in[accumulator++] = result_.tensor[node.out[output]];
      }
    }
    result_.node.push_back(std::move(wanted));
  }

  const ops::AxisSignature& cheapest(const graph::Node& node,
                                     const std::vector<ops::AxisSignature>& all, size_t axis) {
    const ops::AxisSignature* best = nullptr;
    double least = kInfinity;
    for (const ops::AxisSignature& signature : all) {
      const double cost = cost_of(node, signature, axis);
      if (cost < least) {
        best = &signature;
        least = cost;
      }
    }
    if (!best) {
      fail("layouts", "{} ({}) has no legal layout on axis {} for its inputs", node.op,
           graph_.tensor(node.out.empty() ? node.in[0] : node.out[0]).name, mesh_.axes[axis].name);
    }
    return *best;
  }

  double cost_of(const graph::Node& node, const ops::AxisSignature& signature, size_t axis) {
    double cost = 0;
    for (size_t i = 0; i < num_inputs(node); ++i) {
      const Placement here = result_.tensor[node.in[i]][axis];
      cost += cost_to_bring(graph_.tensor(node.in[i]), here, signature.in[i], axis);
    }
    for (size_t output = 0; output < node.out.size(); ++output) {
      const TensorId param = param_of_[node.out[output]];
      if (param == kNone) continue;
      // Reduced once per step, whatever the choice: only the impossible counts.
      if (cost_to_bring(graph_.tensor(node.out[output]), signature.out[output],
                        result_.tensor[param][axis], axis) == kInfinity) {
        return kInfinity;
      }
    }
    return cost;
  }

  /// Sharding is the plan's choice, not the lowering's: persistent tensors stay where the plan put
  /// them, and sums (gradients) end up as their parameter lies, not scattered.
  double cost_to_bring(const graph::Tensor& tensor, Placement from, Placement to, size_t axis) {
    if (from == to) return 0;
    if (tensor.kind == TensorKind::param || tensor.kind == TensorKind::state) return kInfinity;
    if (from.is_partial() && to.is_split() && tensor.type.dtype != graph::DType::i64) {
      return kInfinity;
    }
    return reshard_cost(tensor.type, from, to, &paths_[axis]);
  }

  /// Every routed tensor learns which counts tensor says how many rows each expert has.
  void follow_rows(const graph::Node& node) {
    const ops::Op& op = ops::find(node.op);
    if (op.routing.counts >= 0) {
      counts_of_rows_[node.out[op.routing.row_of]] = node.out[op.routing.counts];
    }
    TensorId counts = kNone;
    for (TensorId id : node.in) {
      if (counts == kNone) {
        counts = result_.counts_of[id];
      }
      if (counts == kNone) {
        counts = counts_of_rows_[id];
      }
    }
    for (TensorId id : node.out) {
      if (graph_.tensor(id).type.routed()) {
        result_.counts_of[id] = counts;
      }
    }
  }

  const Graph& graph_;
  const Mesh& mesh_;
  Layouts result_;
  std::vector<ReshardPaths> paths_;       // per axis, as a mesh of its own
  std::vector<TensorId> param_of_;        // whose gradient it becomes a part of
  std::vector<TensorId> counts_of_rows_;  // by row_of: counts of the same routing
};

}  // namespace

double reshard_cost(TensorType type, Placement from, Placement to, ReshardPaths* axis) {
  if (from.is_split()) {
    // Sizes that do not divide are refused where the value is made: here only the cost counts.
    const int64_t ranks = axis->mesh().size();
    graph::Dim& size = type.dims[from.dim()];
    if (!size.divides_into(ranks)) {
      size = (size + ranks - 1) / ranks * ranks;
    }
  }
  Layout has;
  Layout wants;
  has.set(0, from);
  wants.set(0, to);
  const ReshardPath* const path = axis->path(type, has, wants);
  if (!path) return kInfinity;
  const bool slices = std::any_of(path->steps.begin(), path->steps.end(),
                                  [](const ReshardStep& step) { return !step.op; });
  const bool even = !to.is_split() || type.dims[to.dim()].divides_into(axis->mesh().size());
  return slices && !even ? kInfinity : path->cost;
}

Layouts choose_layouts(const Graph& graph, const Mesh& mesh) {
  return LayoutChoice(graph, mesh).run();
}

graph::Layout summed(graph::Layout layout, const graph::Mesh& mesh) {
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (layout[axis].is_partial() && mesh.axes[axis].size > 1) {
      layout.set(axis, graph::Placement::replicate());
    }
  }
  return layout;
}

}  // namespace hocket::parallel

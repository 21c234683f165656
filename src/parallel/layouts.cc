// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
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

/// The axes whose ranks have other tokens each, and parameters alike.
bool is_data_parallel(std::string_view axis) { return axis == "edp" || axis == "ep"; }

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
  LayoutChoice(const Graph& graph, const Mesh& mesh, const Sharding& sharding)
      : graph_(graph),
        mesh_(mesh),
        sharding_(sharding),
        param_of_(graph.tensors.size(), kNone),
        updated_(graph.tensors.size(), kNone),
        counts_of_rows_(graph.tensors.size(), kNone) {
    result_.counts_of.assign(graph.tensors.size(), kNone);
    for (const graph::Tensor& tensor : graph.tensors) {
      result_.tensor.push_back(initial_layout(tensor, mesh));
    }
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      paths_.emplace_back(Mesh{{mesh.axes[axis]}});
    }
    for (size_t grad = 0; grad < graph.grads.size(); ++grad) {
      for (TensorId id : graph.grads[grad].contributions) {
        param_of_[id] = graph.grads[grad].param;
      }
    }
    share_updates();
  }

  Layouts run() {
    for (const graph::Node& node : graph_.nodes) {
      place(node);
      follow_rows(node);
    }
    find_where_all_lies();
    return std::move(result_);
  }

 private:
  /// The layout in which each parameter is updated, and which tensors have it then: the parameter,
  /// its states, and the total of its gradient; with split gradients all that goes into that.
  void share_updates() {
    for (size_t index = 0; index < graph_.grads.size(); ++index) {
      const graph::ParamGrad& grad = graph_.grads[index];
      const Layout& used = result_.tensor[grad.param];
      result_.update.push_back(
          sharding_.any() ? sharded(graph_.tensor(grad.param).type, used, mesh_) : used);
      updated_[grad.param] = static_cast<int32_t>(index);
      if (grad.total != kNone) {
        updated_[grad.total] = static_cast<int32_t>(index);
      }
      if (sharding_.grads == Shard::all) {
        for (TensorId id : grad.contributions) {
          updated_[id] = static_cast<int32_t>(index);
        }
      }
    }
    for (const graph::Node& node : graph_.nodes) {
      if (node.phase != graph::Phase::optimizer) continue;
      const auto param = std::find_if(node.in.begin(), node.in.end(), [&](TensorId id) {
        return graph_.tensor(id).kind == TensorKind::param;
      });
      if (param == node.in.end()) continue;
      for (TensorId id : node.in) {
        if (graph_.tensor(id).kind == TensorKind::state) {
          updated_[id] = updated_[*param];
        }
      }
    }
  }

  /// See Layouts::lies.
  void find_where_all_lies() {
    result_.lies = result_.tensor;
    for (size_t id = 0; id < graph_.tensors.size(); ++id) {
      const graph::Tensor& tensor = graph_.tensors[id];
      Layout& lies = result_.lies[id];
      if (tensor.kind == TensorKind::param && sharding_.any()) {
        const Layout split = sharded(tensor.type, lies, mesh_);
        for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
          const graph::Axis& ranks = mesh_.axes[axis];
          if (ranks.size > 1 && is_data_parallel(ranks.name) && split[axis].is_replicate()) {
            log_debug("{} {} stays whole over {}: no dim divides into {}", tensor.name,
                      to_string(tensor.type), ranks.name, ranks.size);
          }
        }
        if (sharding_.params == Shard::all) {
          lies = split;
        }
      }
      if (tensor.kind == TensorKind::state && updated_[id] != kNone) {
        lies = result_.update[static_cast<size_t>(updated_[id])];
      }
    }
    if (sharding_.grads != Shard::all) return;
    for (size_t index = 0; index < graph_.grads.size(); ++index) {
      for (TensorId id : graph_.grads[index].contributions) {
        result_.lies[id] = result_.update[index];
      }
    }
  }

  /// Where a node finds a tensor. Those of the optimizer find parameters, states and the totals of
  /// gradients where the update is.
  const Layout& found(const graph::Node& node, TensorId id) const {
    const bool update = node.phase == graph::Phase::optimizer && updated_[id] != kNone;
    return update ? result_.update[static_cast<size_t>(updated_[id])] : result_.tensor[id];
  }

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
    std::vector<size_t> axes(mesh_.axes.size());
    std::iota(axes.begin(), axes.end(), size_t{0});
    if (node.phase == graph::Phase::optimizer) {
      std::reverse(axes.begin(), axes.end());  // as `sharded` has it
    }
    for (size_t axis : axes) {
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
      const Placement here = found(node, node.in[i])[axis];
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
  const Sharding sharding_;
  Layouts result_;
  std::vector<ReshardPaths> paths_;       // per axis, as a mesh of its own
  std::vector<TensorId> param_of_;        // whose gradient it becomes a part of
  std::vector<int32_t> updated_;          // the gradient in whose update it takes part, or kNone
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

Layouts choose_layouts(const Graph& graph, const Mesh& mesh, const Sharding& sharding) {
  return LayoutChoice(graph, mesh, sharding).run();
}

Layout sharded(const TensorType& type, Layout layout, const Mesh& mesh) {
  // A dim that is split already is left alone: what is inside of what is decided by the mesh.
  const auto divides = [&](int dim, int64_t ranks) {
    return layout.axes_of(dim).empty() && type.dims[static_cast<size_t>(dim)].divides_into(ranks);
  };
  const int dims = static_cast<int>(type.dims.size());
  std::vector<size_t> axes;
  int64_t ranks = 1;
  for (size_t axis = mesh.axes.size(); axis-- > 0;) {
    if (mesh.axes[axis].size == 1 || !layout[axis].is_replicate()) continue;
    if (!is_data_parallel(mesh.axes[axis].name)) continue;
    axes.push_back(axis);
    ranks *= mesh.axes[axis].size;
  }
  for (int dim = 0; dim < dims; ++dim) {
    if (!divides(dim, ranks)) continue;
    for (size_t axis : axes) {
      layout.set(axis, Placement::split(dim));
    }
    return layout;
  }
  for (size_t axis : axes) {
    for (int dim = 0; dim < dims; ++dim) {
      if (!divides(dim, mesh.axes[axis].size)) continue;
      layout.set(axis, Placement::split(dim));
      break;
    }
  }
  return layout;
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

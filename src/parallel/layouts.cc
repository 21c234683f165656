// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts.h"

#include <limits>

#include "base/error.h"
#include "comm/ops/comm_op.h"
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double reshard_cost(const TensorType& type, Placement from, Placement to, int32_t n) {
  if (from == to) return 0;
  TensorType local = type;
  if (from.is_split()) {
    // Sizes that do not divide are refused where the value is made: here only the cost counts.
    graph::Dim& size = local.dims[from.dim()];
    if (size.divides_into(n)) {
      size /= n;
    } else {
      size = (size + n - 1) / n;
    }
  }
  const auto step = comm::resharding(local, from, to, n);
  return step ? step->bytes : kInfinity;
}

namespace {

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

/// Sharding is the plan's choice, not the lowering's: persistent tensors stay where the plan put
/// them, and sums (gradients) end up as their parameter lies, not scattered.
double input_cost(const graph::Tensor& tensor, Placement from, Placement to, int32_t n) {
  if (from == to) return 0;
  if (tensor.kind == TensorKind::param || tensor.kind == TensorKind::state) return kInfinity;
  if (from.is_partial() && to.is_split() && tensor.type.dtype != graph::DType::i64) {
    return kInfinity;
  }
  return reshard_cost(tensor.type, from, to, n);
}

}  // namespace

Layouts choose_layouts(const Graph& graph, const Mesh& mesh) {
  // Greedy, node by node in the graph's order, and for every mesh axis by itself: among the layouts
  // that the op allows on that axis, take the one whose inputs cost least to bring there from where
  // they lie; it also says how the outputs lie. Parameters stay where the plan put them, so the
  // choice is always "move the activation". A node that makes a gradient may only choose what can
  // be reduced to the layout of its parameter. On the way, every routed tensor learns which counts
  // tensor says how many rows each expert has.
  Layouts result;
  result.tensor.resize(graph.tensors.size());
  result.counts_of.assign(graph.tensors.size(), kNone);
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    result.tensor[i] = initial_layout(graph.tensors[i], mesh);
  }
  // What becomes a parameter's gradient has to end up as the parameter lies.
  std::vector<TensorId> param_of(graph.tensors.size(), kNone);
  for (const auto& grad : graph.grads) {
    for (TensorId id : grad.contributions) {
      param_of[id] = grad.param;
    }
  }
  // row_of -> counts of the same routing.
  std::vector<TensorId> counts_of_rows(graph.tensors.size(), kNone);

  std::vector<TensorType> in_types;
  std::vector<TensorType> out_types;
  for (const graph::Node& node : graph.nodes) {
    const ops::Op& op = ops::find(node.op);
    const size_t n_in = node.in.size() - node.accumulate.size();
    in_types.clear();
    out_types.clear();
    for (size_t i = 0; i < n_in; ++i) {
      in_types.push_back(graph.tensor(node.in[i]).type);
    }
    for (TensorId id : node.out) {
      out_types.push_back(graph.tensor(id).type);
    }
    auto signatures = ops::signatures(op, in_types, out_types);

    NodeLayouts wanted;
    wanted.in.resize(node.in.size());
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (mesh.axes[axis].size == 1 || mesh.axes[axis].name == kStageAxis) continue;
      const ops::AxisSignature* best = nullptr;
      double best_cost = kInfinity;
      for (const ops::AxisSignature& signature : signatures) {
        double cost = 0;
        for (size_t i = 0; i < n_in; ++i) {
          cost += input_cost(graph.tensor(node.in[i]), result.tensor[node.in[i]][axis],
                             signature.in[i], mesh.axes[axis].size);
        }
        for (size_t output = 0; output < node.out.size(); ++output) {
          if (TensorId param = param_of[node.out[output]]; param != kNone) {
            // Reduced once per step, whatever the choice: only the impossible counts.
            if (input_cost(graph.tensor(node.out[output]), signature.out[output],
                           result.tensor[param][axis], mesh.axes[axis].size) == kInfinity) {
              cost = kInfinity;
            }
          }
        }
        if (cost < best_cost) {
          best = &signature;
          best_cost = cost;
        }
      }
      if (!best) {
        fail("layouts", "{} ({}) has no legal layout on axis {} for its inputs", node.op,
             graph.tensor(node.out.empty() ? node.in[0] : node.out[0]).name, mesh.axes[axis].name);
      }
      for (size_t i = 0; i < n_in; ++i) {
        wanted.in[i].set(axis, best->in[i]);
      }
      for (size_t output = 0; output < node.out.size(); ++output) {
        result.tensor[node.out[output]].set(axis, best->out[output]);
      }
    }
    size_t accumulator = n_in;
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (node.accumulate.contains(output)) {
        wanted.in[accumulator++] = result.tensor[node.out[output]];
      }
    }

    if (op.routing.counts >= 0) {
      counts_of_rows[node.out[op.routing.row_of]] = node.out[op.routing.counts];
    }
    TensorId counts = kNone;
    for (TensorId id : node.in) {
      if (counts == kNone) {
        counts = result.counts_of[id];
      }
      if (counts == kNone) {
        counts = counts_of_rows[id];
      }
    }
    for (TensorId id : node.out) {
      if (graph.tensor(id).type.routed()) {
        result.counts_of[id] = counts;
      }
    }
    result.node.push_back(std::move(wanted));
  }
  return result;
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

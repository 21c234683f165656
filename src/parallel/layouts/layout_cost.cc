// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/layout_cost.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/stop.h"
#include "ops/op.h"
#include "parallel/layouts/reshard.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Mesh;
using graph::Node;
using graph::Phase;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;

namespace {

/// Floating-point operations, and bytes of memory traffic, in the time of one byte over a link.
/// Both ratios hold for 100 GFLOP/s beside 100 MB/s and for 400 TFLOP/s beside 400 GB/s.
constexpr double kFlopsPerByte = 1000;
constexpr double kMemoryPerByte = 16;

int64_t experts_of(const Node& node, const Graph& graph) {
  for (TensorId id : node.in) {
    if (const TensorType& type = graph.tensor(id).type; type.routed()) return type.dims[0];
  }
  return 0;
}

/// Returns whether a tensor that the host reads is produced by a micro-batch and is no gradient.
bool read_of_micro_batch(const Graph& graph, TensorId id) {
  const graph::NodeId producer = graph.tensor(id).producer;
  const bool made = producer != kNone && graph.nodes[producer].phase != Phase::optimizer;
  return made && std::none_of(graph.grads.begin(), graph.grads.end(),
                              [&](const graph::ParamGrad& grad) { return grad.total == id; });
}

/// Sum of the costs of all reshardings and nodes.
class CostSum {
 public:
  CostSum(const Graph& graph, const Mesh& mesh, const Layouts& layouts, int64_t num_micro_batches)
      : graph_(graph), layouts_(layouts), cost_(graph, mesh, num_micro_batches) {}

  void bring(TensorId id, const Layout& from, const Layout& to, bool in_step) {
    sum_.total +=
        cost_(id, from, to, in_step, in_step ? &sum_.bytes_per_step : &sum_.bytes_per_micro_batch);
  }

  /// Adds the reshardings of a node's inputs, except those done before in the same pass. Of an
  /// optimizer node only the addends of gradients count: its other inputs have the layouts that it
  /// reads.
  void bring_inputs(const Node& node, const NodeLayouts& wanted,
                    const std::set<TensorId>& addends) {
    const bool in_step = node.phase == Phase::optimizer;
    for (size_t i = 0; i < node.in.size(); ++i) {
      const TensorId id = node.in[i];
      const graph::Tensor& tensor = graph_.tensor(id);
      if (tensor.kind == TensorKind::param || tensor.kind == TensorKind::state) continue;
      if (in_step && !addends.contains(id)) continue;
      const Layout& from = in_step ? layouts_.storage[id] : layouts_.tensor[id];
      if (from != wanted.in[i] && resharded_.insert({id, wanted.in[i], node.phase}).second) {
        bring(id, from, wanted.in[i], in_step);
      }
    }
  }

  void work(double cost) { sum_.total += cost; }
  const LayoutCost& sum() const { return sum_; }

 private:
  const Graph& graph_;
  const Layouts& layouts_;
  ReshardCosts cost_;
  std::set<std::tuple<TensorId, Layout, Phase>> resharded_;
  LayoutCost sum_;
};

}  // namespace

double ReshardCosts::operator()(TensorId id, const Layout& from, const Layout& to, bool in_step,
                                double* bytes) {
  if (from == to) return 0;
  const ReshardPath* const path = paths_.path(graph_.tensor(id).type, from, to);
  if (!path) return std::numeric_limits<double>::infinity();
  if (bytes) {
    *bytes += path->bytes;
  }
  // Gradients are reduced in buckets and share their rounds.
  return in_step ? per_step_ * (path->bytes > 0 ? path->bytes : path->cost) : path->cost;
}

TensorType part_of(TensorType type, const Layout& layout, const Mesh& mesh) {
  for (int dim = 0; dim < std::ssize(type.dims); ++dim) {
    int64_t blocks = 1;
    for (int32_t axis : layout.axes_of(dim)) {
      blocks *= mesh.axes[axis].size;
    }
    graph::Dim& size = type.dims[dim];
    if (!size.symbolic() && !size.divides_into(blocks)) {
      size = (size + blocks - 1) / blocks * blocks;
    }
  }
  try {
    Layout even = layout;
    even.given.clear();
    return graph::local_type(type, even, mesh);
  } catch (const Error&) {
    return type;
  }
}

double work_cost(const Graph& graph, const Node& node, const Mesh& mesh,
                 const std::vector<Layout>& in, const std::vector<Layout>& out) {
  std::vector<TensorType> in_types;
  std::vector<TensorType> out_types;
  for (size_t i = 0; i < node.in.size() - node.accumulate.size(); ++i) {
    in_types.push_back(part_of(graph.tensor(node.in[i]).type, in[i], mesh));
  }
  for (size_t output = 0; output < node.out.size(); ++output) {
    out_types.push_back(part_of(graph.tensor(node.out[output]).type, out[output], mesh));
  }
  const ops::Cost cost = ops::cost_of(ops::find(node.op), {node.attrs, in_types, out_types,
                                                           experts_of(node, graph), graph.symbols});
  return cost.flops / kFlopsPerByte + cost.bytes / kMemoryPerByte;
}

LayoutCost layout_cost(const Graph& graph, const Mesh& mesh, const Layouts& layouts,
                       int64_t num_micro_batches) {
  CostSum costs(graph, mesh, layouts, num_micro_batches);
  std::set<TensorId> addends;  // contributions that are added to a total
  for (size_t index = 0; index < graph.grads.size(); ++index) {
    const graph::ParamGrad& grad = graph.grads[index];
    for (TensorId id : grad.contributions) {
      if (id != grad.total) {
        addends.insert(id);
      }
      costs.bring(id, layouts.tensor[id], layouts.storage[id], false);
    }
    if (grad.total != kNone) {
      costs.bring(grad.total, layouts.storage[grad.total], layouts.update[index], true);
    }
  }
  for (const std::vector<TensorId>* read : {&graph.losses, &graph.outputs}) {
    for (TensorId id : *read) {
      if (read_of_micro_batch(graph, id)) {
        costs.bring(id, layouts.tensor[id], summed(layouts.tensor[id], mesh), false);
      }
    }
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    stop_if_asked();
    const Node& node = graph.nodes[n];
    costs.bring_inputs(node, layouts.node[n], addends);
    if (node.phase == Phase::optimizer) continue;
    std::vector<Layout> out;
    for (TensorId id : node.out) {
      out.push_back(layouts.tensor[id]);
    }
    costs.work(work_cost(graph, node, mesh, layouts.node[n].in, out));
  }
  return costs.sum();
}

}  // namespace hocket::parallel

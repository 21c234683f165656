// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/pipeline_owners.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "parallel/layouts/layouts.h"
#include "parallel/lowering/pipeline.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::TensorId;
using graph::TensorKind;

bool contains(const PipelineRanks& ranks, int32_t rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

PipelineRanks united(const PipelineRanks& left, const PipelineRanks& right) {
  PipelineRanks all;
  std::set_union(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(all));
  return all;
}

namespace {

PipelineRanks common(const PipelineRanks& left, const PipelineRanks& right) {
  PipelineRanks both;
  std::set_intersection(left.begin(), left.end(), right.begin(), right.end(),
                        std::back_inserter(both));
  return both;
}

bool makes_optimizer_tensor(const Graph& graph, TensorId tensor) {
  const NodeId producer = graph.tensor(tensor).producer;
  return producer != kNone && graph.nodes[producer].phase == graph::Phase::optimizer;
}

}  // namespace

PipelineOwners::PipelineOwners(const Graph& graph, const Pipeline& pipeline)
    : runs_(graph.nodes.size()),
      has_(graph.tensors.size()),
      partial_(graph.tensors.size(), false),
      gathers_(graph.nodes.size(), false),
      sums_gradients_(graph.nodes.size(), false),
      sums_of_(graph.grads.size()) {
  // Forward and backward nodes run on the ranks of their layer, and a parameter is stored where
  // forward nodes read it. Then the nodes of the step, in the graph's order; then, from last to
  // first, those with inputs that no rank has completely.
  find_gradient_sums(graph);
  place_layers(graph, pipeline);
  place_step(graph, pipeline);
  place_gathering(graph, pipeline);
  mark_addends(graph);
}

void PipelineOwners::place_layers(const Graph& graph, const Pipeline& pipeline) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase == graph::Phase::optimizer) continue;
    const int32_t stage = pipeline.stage_of(node.layer);
    for (int32_t route = 0; route < pipeline.num_routes(); ++route) {
      runs_[n] = united(runs_[n], {pipeline.rank_of(stage, route)});
    }
    for (TensorId output : node.out) {
      has_[output] = runs_[n];
    }
    if (node.phase != graph::Phase::forward) continue;
    for (TensorId input : node.in) {
      if (graph.tensor(input).kind == TensorKind::param) {
        has_[input] = united(has_[input], runs_[n]);
      }
    }
  }
  for (const TensorId loss : graph.losses) {
    partial_[loss] = has_[loss].size() > 1;
  }
  for (const graph::ParamGrad& grad : graph.grads) {
    for (const TensorId contribution : grad.contributions) {
      partial_[contribution] = has_[contribution].size() > 1;
    }
  }
}

/// Finds the optimizer nodes between the contributions to a gradient and its total.
void PipelineOwners::find_gradient_sums(const Graph& graph) {
  for (size_t grad = 0; grad < graph.grads.size(); ++grad) {
    std::set<NodeId> sums;
    std::vector<TensorId> open;
    if (graph.grads[grad].total != kNone) {
      open.push_back(graph.grads[grad].total);
    }
    while (!open.empty()) {
      const TensorId tensor = open.back();
      open.pop_back();
      if (!makes_optimizer_tensor(graph, tensor)) continue;  // a contribution
      const NodeId producer = graph.tensor(tensor).producer;
      sums_gradients_[producer] = true;
      sums.insert(producer);
      open.insert(open.end(), graph.nodes[producer].in.begin(), graph.nodes[producer].in.end());
    }
    sums_of_[grad].assign(sums.begin(), sums.end());
  }
}

/// Returns the parameter that a node of the step updates or helps to update: the node reads the
/// parameter, a state of it, or a result of such a node. kNone: it is no such node.
TensorId PipelineOwners::updated_by(const Graph& graph, const Node& node) const {
  for (TensorId input : node.in) {
    if (graph.tensor(input).kind == TensorKind::param) return input;
  }
  for (TensorId input : node.in) {
    const graph::Tensor& tensor = graph.tensor(input);
    const bool made = makes_optimizer_tensor(graph, input) && !sums_gradients_[tensor.producer];
    if (tensor.kind == TensorKind::state || made) return tensor.of;
  }
  return kNone;
}

/// Returns by tensor the ranks that update parameters with it.
std::vector<PipelineRanks> PipelineOwners::ranks_of_updates(const Graph& graph) const {
  std::vector<PipelineRanks> ranks(graph.tensors.size());
  for (const Node& node : graph.nodes) {
    if (node.phase != graph::Phase::optimizer) continue;
    const TensorId updated = updated_by(graph, node);
    if (updated == kNone) continue;
    for (TensorId input : node.in) {
      ranks[input] = united(ranks[input], has_[updated]);
    }
  }
  return ranks;
}

void PipelineOwners::place_step(const Graph& graph, const Pipeline& pipeline) {
  // An update runs wherever its parameter is stored. A sum of contributions runs on every rank that
  // has one, and is partial if there are several. Any other node runs on one rank with all inputs,
  // if possible that of its layer. There may be no such rank, or updates on other ranks may read
  // the result. Then the node gathers its inputs and runs on the ranks that read it.
  const std::vector<PipelineRanks> updates = ranks_of_updates(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase != graph::Phase::optimizer) continue;
    const TensorId updated = updated_by(graph, node);
    bool any = false;
    PipelineRanks some;
    PipelineRanks all;
    for (TensorId input : node.in) {
      if (graph.tensor(input).producer == kNone) continue;
      all = any ? common(all, has_[input]) : has_[input];
      some = united(some, has_[input]);
      any = true;
    }
    if (updated != kNone) {
      runs_[n] = has_[updated];
    } else if (sums_gradients_[n]) {
      runs_[n] = some;
    } else if (any && all.empty()) {
      gathers_[n] = true;
    } else {
      const int32_t own = pipeline.rank_of_layer(node.layer);
      const int32_t one = all.empty() || contains(all, own) ? own : all.front();
      gathers_[n] = any && std::any_of(node.out.begin(), node.out.end(), [&](TensorId output) {
                      return united(updates[output], {one}).size() > 1;
                    });
      runs_[n] = gathers_[n] ? PipelineRanks{} : PipelineRanks{one};
    }
    for (TensorId output : node.out) {
      has_[output] = runs_[n];
      partial_[output] = sums_gradients_[n] && runs_[n].size() > 1;
    }
  }
}

void PipelineOwners::place_gathering(const Graph& graph, const Pipeline& pipeline) {
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!gathers_[n]) continue;
    const Node& gathering = graph.nodes[n];
    for (size_t reader = n + 1; reader < graph.nodes.size(); ++reader) {
      const Node& node = graph.nodes[reader];
      const bool reads = std::any_of(node.in.begin(), node.in.end(), [&](TensorId input) {
        return std::find(gathering.out.begin(), gathering.out.end(), input) != gathering.out.end();
      });
      if (reads) {
        runs_[n] = united(runs_[n], runs_[reader]);
      }
    }
    if (runs_[n].empty()) {
      runs_[n] = {pipeline.rank_of_layer(gathering.layer)};  // the host reads the result
    }
    for (TensorId output : gathering.out) {
      has_[output] = runs_[n];
    }
    for (TensorId input : gathering.in) {
      partial_[input] = true;
    }
  }
}

/// Marks the addends of partial sums as partial.
void PipelineOwners::mark_addends(const Graph& graph) {
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!sums_gradients_[n] || !partial_[graph.nodes[n].out[0]]) continue;
    for (TensorId input : graph.nodes[n].in) {
      partial_[input] = true;
    }
  }
}

void set_partial_along_pipeline(const Graph& graph, const PipelineOwners& owners, int32_t axis,
                                Layouts* layouts) {
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    if (owners.partial(static_cast<TensorId>(id))) {
      layouts->tensor[id].set(axis, graph::Placement::partial());
      layouts->storage[id].set(axis, graph::Placement::partial());
    }
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!owners.sums_gradients(static_cast<NodeId>(n))) continue;
    for (size_t i = 0; i < graph.nodes[n].in.size(); ++i) {
      layouts->node[n].in[i].set(axis, layouts->tensor[graph.nodes[n].in[i]][axis]);
    }
  }
}

}  // namespace hocket::parallel

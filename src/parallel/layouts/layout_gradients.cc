// SPDX-License-Identifier: Apache-2.0
// Implements: better_gradients (layout_problem.h). It chooses signatures on all axes together,
// since the reductions and gathers of a gradient on one axis depend on the others more than those
// of any other tensor.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "parallel/layouts/layout_cost.h"
#include "parallel/layouts/layout_problem.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Mesh;
using graph::Node;
using graph::TensorId;

namespace {

class Gradients {
 public:
  Gradients(const Graph& graph, const Mesh& mesh, const LayoutsGiven& start, const Layouts& now,
            const std::vector<size_t>& axes, int64_t num_micro_batches)
      : graph_(graph),
        mesh_(mesh),
        now_(now),
        axes_(axes),
        rules_(graph, mesh, start),
        bring_(graph, mesh, num_micro_batches),
        total_of_(graph.tensors.size(), kNone) {
    for (size_t axis : axes) {
      problems_.push_back(axis_problem(&rules_, now, axis, num_micro_batches));
    }
    for (size_t index = 0; index < graph.grads.size(); ++index) {
      if (graph.grads[index].total != kNone) {
        total_of_[graph.grads[index].total] = index;
      }
    }
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      count_readers(n, now.node[n].in, 1);
    }
  }

  /// Tries, node by node, all combinations of signatures along the axes.
  std::optional<std::vector<NodeLayouts>> run() {
    std::vector<NodeLayouts> signatures = now_.node;
    bool better = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const std::vector<std::vector<int32_t>> choices = choices_of(n);
      if (choices.empty()) continue;
      count_readers(n, now_.node[n].in, -1);
      const Placed before = place(n, now_.node[n].signature);
      Placed best = before;
      for (const std::vector<int32_t>& signature : choices) {
        Placed placed = place(n, signature);
        if (placed.cost < std::min(best.cost, before.cost - kDeparture)) {
          best = std::move(placed);
        }
      }
      count_readers(n, best.in, 1);
      better = better || best.signature != before.signature;
      signatures[n].signature = std::move(best.signature);
    }
    if (!better) return std::nullopt;
    return signatures;
  }

 private:
  struct Placed {
    double cost = kInfinity;
    std::vector<int32_t> signature;  ///< by axis
    std::vector<Layout> in;
  };

  /// Returns the combinations of signatures, by axis, of a node that makes only gradients and has a
  /// choice on some axis; else nothing.
  std::vector<std::vector<int32_t>> choices_of(size_t n) const {
    const Node& node = graph_.nodes[n];
    std::vector<std::vector<int32_t>> list{now_.node[n].signature};
    size_t several = 0;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const ChoiceId choice = problems_[i].choice_of[n];
      if (choice == kNone) continue;
      ++several;
      std::vector<std::vector<int32_t>> longer;
      for (const std::vector<int32_t>& one : list) {
        for (int32_t signature : problems_[i].signatures[choice]) {
          longer.push_back(one);
          longer.back()[axes_[i]] = signature;
        }
      }
      list = std::move(longer);
    }
    const bool gradients = std::all_of(node.out.begin(), node.out.end(),
                                       [&](TensorId id) { return rules_.param_of(id) != kNone; });
    return several > 0 && gradients ? list : std::vector<std::vector<int32_t>>();
  }

  /// Places the node with these signatures and returns its cost on all axes.
  Placed place(size_t n, std::vector<int32_t> signature) {
    const Node& node = graph_.nodes[n];
    const std::vector<ops::AxisSignature> all = rules_.signatures(node);
    NodeLayouts wanted;
    wanted.in.resize(node.in.size());
    for (TensorId id : node.out) {
      rules_.put(id, {});
    }
    Placed placed;
    rules_.begin(node);
    for (size_t axis : rules_.order_of_axes(node)) {
      if (!rules_.is_used(axis)) continue;
      const ops::AxisSignature& taken = all[signature[axis]];
      if (!rules_.may_take(node, taken, wanted, axis) ||
          rules_.cost_of(node, taken, axis) == kInfinity) {
        return placed;
      }
      for (size_t i = 0; i < num_inputs(node); ++i) {
        wanted.in[i].set(axis, taken.in[i]);
      }
      rules_.place(node, taken, axis);
    }
    for (size_t i = 0; i < num_inputs(node); ++i) {
      wanted.in[i] = rules_.with_sizes(node.in[i], wanted.in[i]);
    }
    for (TensorId id : node.out) {
      rules_.put(id, rules_.with_sizes(id, rules_.layouts()[id]));
    }
    placed.signature = std::move(signature);
    placed.in = std::move(wanted.in);
    placed.cost = cost_of(node, placed.in);
    return placed;
  }

  /// Returns the cost of a node. Requires: its outputs are placed.
  double cost_of(const Node& node, const std::vector<Layout>& in) {
    double cost = 0;
    for (size_t i = 0; i < num_inputs(node); ++i) {
      const TensorId id = node.in[i];
      if (readers_[{id, in[i], node.phase}] == 0) {
        cost += bring_(id, now_.tensor[id], in[i], false);
      }
    }
    std::vector<Layout> out;
    for (TensorId id : node.out) {
      Layout layout = out.emplace_back(rules_.layouts()[id]);
      if (rules_.sharding().grads != Shard::none) {
        const Layout split = rules_.accumulation_layout(id);
        cost += bring_(id, layout, split, false);
        layout = split;
      }
      if (total_of_[id] != kNone) {
        cost += bring_(id, layout, rules_.updates()[total_of_[id]], true);
      }
    }
    return cost + work_cost(graph_, node, mesh_, in, out);
  }

  /// Adds `times` to the number of nodes of the pass that read each input in its layout.
  void count_readers(size_t n, const std::vector<Layout>& in, int times) {
    const Node& node = graph_.nodes[n];
    for (size_t i = 0; i < in.size(); ++i) {
      readers_[{node.in[i], in[i], node.phase}] += times;
    }
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Layouts& now_;
  const std::vector<size_t>& axes_;
  LayoutRules rules_;
  ReshardCosts bring_;
  std::vector<AxisProblem> problems_;  // by `axes_`
  std::vector<int32_t> total_of_;      // by tensor: the gradient that it totals, or kNone
  std::map<std::tuple<TensorId, Layout, graph::Phase>, int> readers_;
};

}  // namespace

std::optional<std::vector<NodeLayouts>> better_gradients(const Graph& graph, const Mesh& mesh,
                                                         const LayoutsGiven& given,
                                                         const Layouts& now,
                                                         const std::vector<size_t>& axes,
                                                         int64_t num_micro_batches) {
  LayoutsGiven start = given;
  start.stored = now.tensor;
  return Gradients(graph, mesh, start, now, axes, num_micro_batches).run();
}

}  // namespace hocket::parallel

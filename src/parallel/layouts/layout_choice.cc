// SPDX-License-Identifier: Apache-2.0
// Implements: choose_over_graph (layout_problem.h).
#include <string>
#include <utility>

#include "base/log.h"
#include "parallel/layouts/layout_cost.h"
#include "parallel/layouts/layout_problem.h"
#include "parallel/layouts/layout_search.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Mesh;
using graph::Node;

namespace {

/// Names a node in messages by its first output.
std::string name_of(const Graph& graph, size_t n) {
  const Node& node = graph.nodes[n];
  return node.op + " (" + graph.tensor(node.out.empty() ? node.in[0] : node.out[0]).name + ")";
}

/// Returns NodeLayouts::signature of all nodes with the best choice on these axes, each axis by
/// itself, or nothing if nothing changes.
std::optional<std::vector<NodeLayouts>> better_signatures(const Graph& graph, const Mesh& mesh,
                                                          const LayoutsGiven& given,
                                                          const Layouts& now,
                                                          const std::vector<size_t>& axes,
                                                          int64_t num_micro_batches) {
  LayoutsGiven start = given;
  start.stored = now.tensor;
  LayoutRules rules(graph, mesh, start);
  std::vector<NodeLayouts> signatures = now.node;
  bool better = false;
  for (size_t axis : axes) {
    const AxisProblem made = axis_problem(&rules, now, axis, num_micro_batches);
    const Chosen chosen = choose(made.problem, made.start);
    log_debug("layouts on {}: {} choices, {} tables, the largest of {} entries; {}",
              mesh.axes[axis].name, made.start.size(), made.problem.tables.size(), chosen.largest,
              chosen.exact ? "exact" : "searched");
    for (size_t n = 0; n < signatures.size(); ++n) {
      const ChoiceId choice = made.choice_of[n];
      if (choice == kNone || chosen.value[choice] == made.start[choice]) continue;
      signatures[n].signature[axis] = made.signatures[choice][chosen.value[choice]];
      log_debug("layouts on {}: another signature for {}", mesh.axes[axis].name, name_of(graph, n));
      better = true;
    }
  }
  if (!better) return std::nullopt;
  return signatures;
}

/// Replaces layouts by cheaper ones until none are found.
class Improvement {
 public:
  Improvement(const Graph& graph, const Mesh& mesh, const LayoutsGiven& given, Layouts* now,
              int64_t num_micro_batches)
      : graph_(graph), mesh_(mesh), given_(given), now_(*now), micro_batches_(num_micro_batches) {}

  void run() {
    // Improve all axes at once, each as if the others stayed as they are. If the combination is not
    // cheaper, improve one axis after the other; then gradients on all axes together.
    const LayoutRules rules(graph_, mesh_, given_);
    std::vector<size_t> axes;
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (rules.is_used(axis)) {
        axes.push_back(axis);
      }
    }
    const bool several = axes.size() > 1;
    for (bool better = true; better;) {
      better = improve(better_signatures(graph_, mesh_, given_, now_, axes, micro_batches_));
      for (size_t i = 0; several && !better && i < axes.size(); ++i) {
        better = improve(better_signatures(graph_, mesh_, given_, now_, {axes[i]}, micro_batches_));
      }
      if (several && !better) {
        better = improve(better_gradients(graph_, mesh_, given_, now_, axes, micro_batches_));
      }
    }
  }

 private:
  bool improve(const std::optional<std::vector<NodeLayouts>>& signatures) {
    if (!signatures) return false;
    std::optional<Layouts> other = layouts_with(graph_, mesh_, given_, *signatures);
    if (!other) {
      log_debug("layouts: not legal on all axes together");
      return false;
    }
    const LayoutCost before = layout_cost(graph_, mesh_, now_, micro_batches_);
    const LayoutCost after = layout_cost(graph_, mesh_, *other, micro_batches_);
    log_debug(
        "layouts: cost {:.0f} ({:.0f} bytes a micro-batch, {:.0f} a step), {:.0f} ({:.0f}, {:.0f}) "
        "before",
        after.total, after.bytes_per_micro_batch, after.bytes_per_step, before.total,
        before.bytes_per_micro_batch, before.bytes_per_step);
    if (after.total >= before.total) return false;
    other->saved = {now_.saved ? now_.saved->by_node : before, after};
    now_ = std::move(*other);
    return true;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const LayoutsGiven& given_;
  Layouts& now_;
  const int64_t micro_batches_;
};

}  // namespace

void choose_over_graph(const Graph& graph, const Mesh& mesh, const LayoutsGiven& given,
                       int64_t num_micro_batches, Layouts* now) {
  Improvement(graph, mesh, given, now, num_micro_batches).run();
}

}  // namespace hocket::parallel

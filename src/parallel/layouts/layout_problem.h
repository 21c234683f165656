// SPDX-License-Identifier: Apache-2.0
// The choice of signatures over the whole graph, on one mesh axis, as a sum of cost tables
// (layout_search.h) with the costs of layout_cost.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/layouts/layout_rules.h"
#include "parallel/layouts/layout_search.h"
#include "parallel/layouts/layouts.h"

namespace hocket::parallel {

/// Least saving of another choice than the first, in bytes over a rank's link: the overhead of
/// starting a task.
inline constexpr double kDeparture = 1024;

/// Choices of all nodes on one axis. Placements on other axes stay as they are.
struct AxisProblem {
  ChoiceProblem problem;
  std::vector<int32_t> start;       ///< by choice: its current value
  std::vector<ChoiceId> choice_of;  ///< by node, kNone if it has none
  /// By choice and value: index into ops::signatures. Empty for a choice of no node.
  std::vector<std::vector<int32_t>> signatures;
};

/// Freedom of the search beyond the rules.
struct Freedom {
  /// Allows split activations and gradients to become whole on every rank, which takes more memory.
  bool unsplit = false;
};

/// Returns the choices and cost tables of an axis. `rules` has the layouts of `now`, before and
/// afterwards.
AxisProblem axis_problem(LayoutRules* rules, const Layouts& now, size_t axis,
                         int64_t num_micro_batches, const Freedom& freedom = {});

/// Returns NodeLayouts::signature of all nodes, where nodes that make only gradients take, one
/// after the other, the best signatures on these axes together. Returns nothing if nothing changes.
std::optional<std::vector<NodeLayouts>> better_gradients(
    const graph::Graph& graph, const graph::Mesh& mesh, const LayoutsGiven& given,
    const Layouts& now, const std::vector<size_t>& axes, int64_t num_micro_batches);

/// Replaces layouts by cheaper ones until none are found. Nodes are not replaced.
void choose_over_graph(const graph::Graph& graph, const graph::Mesh& mesh,
                       const LayoutsGiven& given, int64_t num_micro_batches, Layouts* now);

}  // namespace hocket::parallel

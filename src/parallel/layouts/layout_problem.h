// SPDX-License-Identifier: Apache-2.0
// The choice of signatures over the whole graph, on one axis of the mesh, as a sum of tables
// (layout_search.h), of what layout_cost.h counts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/layouts/layout_rules.h"
#include "parallel/layouts/layout_search.h"
#include "parallel/layouts/layouts.h"

namespace hocket::parallel {

/// What a choice has to save that is not the first one: as much as beginning a task costs.
inline constexpr double kDeparture = 1024;

/// The signatures of all nodes on one axis, as choices. On other axes all lies as it did.
struct AxisProblem {
  ChoiceProblem problem;
  std::vector<int32_t> start;      ///< by choice: as it was
  std::vector<int32_t> choice_of;  ///< by node, kNone if it has none
  /// By choice: of which of ops::signatures a value stands for. Empty: of no node.
  std::vector<std::vector<int32_t>> signatures;
};

/// What the search may choose among, beside what the rules allow.
struct Freedom {
  /// Activations and gradients that were split may be whole on every rank, which takes more memory.
  bool unsplit = false;
};

/// `rules` of a graph in which all lies as in `now`; it does afterwards.
AxisProblem axis_problem(LayoutRules* rules, const Layouts& now, size_t axis,
                         int64_t num_micro_batches, const Freedom& freedom = {});

/// NodeLayouts::signature of all nodes, where those that make gradients and nothing else, one after
/// the other, take the best on these axes together; nothing if they are those of `now`.
std::optional<std::vector<NodeLayouts>> better_gradients(
    const graph::Graph& graph, const graph::Mesh& mesh, const LayoutsGiven& given,
    const Layouts& now, const std::vector<size_t>& axes, int64_t num_micro_batches);

/// Goes on from these layouts to cheaper ones, as long as there are some. Nodes stay what they are.
void choose_over_graph(const graph::Graph& graph, const graph::Mesh& mesh,
                       const LayoutsGiven& given, int64_t num_micro_batches, Layouts* now);

}  // namespace hocket::parallel

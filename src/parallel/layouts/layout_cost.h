// SPDX-License-Identifier: Apache-2.0
// Cost of layouts, in bytes over a rank's link, per micro-batch. Work done once per step (gradient
// reductions) counts 1/num_micro_batches. Counted are:
// - every resharding of a tensor, once for all readers of the same layout;
// - every gradient, from its production to its accumulation and to its update;
// - the sums of outputs of a micro-batch that the host reads;
// - the arithmetic and memory traffic of every node on a rank, so that work repeated on all ranks
//   is not free.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"
#include "parallel/layouts/layouts.h"
#include "parallel/layouts/reshard.h"

namespace hocket::parallel {

/// Returns the cost of the layouts on all axes. `graph`: the one that is lowered.
LayoutCost layout_cost(const graph::Graph& graph, const graph::Mesh& mesh, const Layouts& layouts,
                       int64_t num_micro_batches);

/// Cost of resharding single tensors.
class ReshardCosts {
 public:
  ReshardCosts(const graph::Graph& graph, const graph::Mesh& mesh, int64_t num_micro_batches)
      : graph_(graph), per_step_(1.0 / num_micro_batches), paths_(mesh) {}

  /// Returns the cost, or infinity if there is no path. `in_step`: once, at the end of a step. Adds
  /// to `bytes`.
  double operator()(graph::TensorId id, const graph::Layout& from, const graph::Layout& to,
                    bool in_step, double* bytes = nullptr);

 private:
  const graph::Graph& graph_;
  const double per_step_;
  ReshardPaths paths_;
};

/// Returns the type of a rank's piece. Sizes that do not divide are rounded up; a type that cannot
/// be cut counts whole.
graph::TensorType part_of(graph::TensorType type, const graph::Layout& layout,
                          const graph::Mesh& mesh);

/// Returns the cost of one run of a node on a rank, with operands of layouts `in` and `out`.
double work_cost(const graph::Graph& graph, const graph::Node& node, const graph::Mesh& mesh,
                 const std::vector<graph::Layout>& in, const std::vector<graph::Layout>& out);

}  // namespace hocket::parallel

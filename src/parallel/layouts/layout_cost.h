// SPDX-License-Identifier: Apache-2.0
// What layouts cost, in bytes through a rank's link, per micro-batch; what happens once in a step
// (the sums of gradients at its end) counts as a part of each micro-batch:
// - every tensor that is brought to a layout, once for all readers that want it so;
// - every gradient from where it is made to where it is added up and updated;
// - the sums of what the host reads of a micro-batch;
// - the arithmetic and memory traffic of every node on a rank, so that what all ranks repeat is not
//   free.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"
#include "parallel/layouts/layouts.h"
#include "parallel/layouts/reshard.h"

namespace hocket::parallel {

/// On all axes together. `graph`: the one that is lowered.
LayoutCost layout_cost(const graph::Graph& graph, const graph::Mesh& mesh, const Layouts& layouts,
                       int64_t num_micro_batches);

/// What single tensors cost to bring.
class BringingCost {
 public:
  BringingCost(const graph::Graph& graph, const graph::Mesh& mesh, int64_t num_micro_batches)
      : graph_(graph), per_step_(1.0 / static_cast<double>(num_micro_batches)), paths_(mesh) {}

  /// Infinity if it can't be. `in_step`: once, at the end of a step. `bytes` are added to.
  double operator()(graph::TensorId id, const graph::Layout& from, const graph::Layout& to,
                    bool in_step, double* bytes = nullptr);

 private:
  const graph::Graph& graph_;
  const double per_step_;
  ReshardPaths paths_;
};

/// As much of a type as a rank has of it: sizes that do not divide are rounded up, and what can't
/// be cut counts whole.
graph::TensorType part_of(graph::TensorType type, const graph::Layout& layout,
                          const graph::Mesh& mesh);

/// Of one application of a node on a rank that has its operands in these layouts.
double work_cost(const graph::Graph& graph, const graph::Node& node, const graph::Mesh& mesh,
                 const std::vector<graph::Layout>& in, const std::vector<graph::Layout>& out);

}  // namespace hocket::parallel

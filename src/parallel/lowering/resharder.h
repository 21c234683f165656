// SPDX-License-Identifier: Apache-2.0
// Emits the communication that brings a value from one layout to another.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "parallel/layouts/layouts.h"
#include "parallel/layouts/reshard.h"
#include "parallel/lowering/task_builder.h"
#include "parallel/lowering/value_table.h"

namespace hocket::parallel {

class Resharder {
 public:
  /// `coords`: of a rank of the class.
  Resharder(const graph::Graph& graph, const graph::Mesh& mesh, const Layouts& layouts,
            std::vector<int32_t> coords, ValueTable& values, TaskBuilder& tasks)
      : graph_(graph),
        mesh_(mesh),
        layouts_(layouts),
        coords_(std::move(coords)),
        values_(values),
        tasks_(tasks),
        paths_(mesh) {}

  /// Appends the steps of the cheapest path and returns the value in the new layout. Every layout
  /// on the path is a value that find() returns. Throws Error if there is no path.
  ValueId reshard(ValueId from, const graph::Layout& to, const TaskSite& site);
  /// Appends one coalesced all-reduce of several values. A value of life `step` is reduced in
  /// place; a value of a micro-batch is not, since others may read its partial form.
  void all_reduce(const std::vector<ValueId>& from, const std::vector<graph::Layout>& to,
                  const ReshardStep& step, const TaskSite& site);
  /// Returns the cheapest path, or null.
  const ReshardPath* path(const graph::TensorType& type, const graph::Layout& from,
                          const graph::Layout& to) {
    return paths_.path(type, from, to);
  }
  /// Forgets the exchanged sizes: micro-batches of another route exchange their own.
  void forget_sizes() { sizes_of_.clear(); }

 private:
  ValueId slice(ValueId from, const ReshardStep& step, const TaskSite& site);
  ValueId sizes(graph::TensorId counts, const std::vector<int32_t>& over, int32_t axis,
                const TaskSite& site);
  graph::Attrs attrs_here(const ReshardStep& step, const graph::Layout& from,
                          const graph::TensorType& whole, const graph::TensorType& type) const;

  const graph::Graph& graph_;
  const graph::Mesh& mesh_;
  const Layouts& layouts_;
  const std::vector<int32_t> coords_;
  ValueTable& values_;
  TaskBuilder& tasks_;
  ReshardPaths paths_;
  /// Sizes matrix of the exchange over the last of some axes that split experts, by counts tensor
  /// and these axes.
  std::map<std::pair<graph::TensorId, std::vector<int32_t>>, ValueId> sizes_of_;
};

}  // namespace hocket::parallel

// SPDX-License-Identifier: Apache-2.0
// Pipeline ranks that run each node and hold each tensor.
// A tensor at the end of the step that one stage makes is partial along the pipeline: its rank has
// it, and the others add nothing to the sum. So the gradient of a parameter that several stages use
// is partial, and so are the norms of gradients from which the clipping factor is computed. Where
// micro-batches take several routes, a stage has copies: each has the stage's parameters, and
// tensors that accumulate over micro-batches are partial, too.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace hocket::parallel {

struct Layouts;
struct Pipeline;

/// Ranks of the pipeline, ascending.
using PipelineRanks = std::vector<int32_t>;

bool contains(const PipelineRanks& ranks, int32_t rank);
PipelineRanks united(const PipelineRanks& left, const PipelineRanks& right);

class PipelineOwners {
 public:
  PipelineOwners(const graph::Graph& graph, const Pipeline& pipeline);

  /// Returns the ranks that run a node: of a layer, one per route that differs in it; of an
  /// optimizer node that sums, those that have a part.
  const PipelineRanks& runs(graph::NodeId node) const { return runs_[node]; }
  /// Returns the ranks that have a tensor or a part of it; for a parameter, those with a stage that
  /// reads it.
  const PipelineRanks& has(graph::TensorId tensor) const { return has_[tensor]; }
  /// Returns whether the ranks have partial sums of a tensor.
  bool partial(graph::TensorId tensor) const { return partial_[tensor]; }
  /// Returns whether the inputs of an optimizer node are summed over the pipeline: no rank with all
  /// inputs has all readers. The node runs on the ranks of its readers.
  bool gathers(graph::NodeId node) const { return gathers_[node]; }
  /// Returns whether a node sums contributions to a parameter's gradient into (a part of) the
  /// total.
  bool sums_gradients(graph::NodeId node) const { return sums_gradients_[node]; }
  /// Returns these nodes of one gradient, an index into Graph::grads, in the graph's order.
  const std::vector<graph::NodeId>& sums_of(size_t grad) const { return sums_of_[grad]; }

 private:
  void place_layers(const graph::Graph& graph, const Pipeline& pipeline);
  graph::TensorId updated_by(const graph::Graph& graph, const graph::Node& node) const;
  std::vector<PipelineRanks> ranks_of_updates(const graph::Graph& graph) const;
  void place_step(const graph::Graph& graph, const Pipeline& pipeline);
  void place_gathering(const graph::Graph& graph, const Pipeline& pipeline);
  void mark_addends(const graph::Graph& graph);
  void find_gradient_sums(const graph::Graph& graph);

  std::vector<PipelineRanks> runs_, has_;
  std::vector<bool> partial_, gathers_, sums_gradients_;
  std::vector<std::vector<graph::NodeId>> sums_of_;
};

/// Marks the layouts of partial tensors as partial along `axis`, the pipeline's.
void set_partial_along_pipeline(const graph::Graph& graph, const PipelineOwners& owners,
                                int32_t axis, Layouts* layouts);

}  // namespace hocket::parallel

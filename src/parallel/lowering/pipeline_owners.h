// SPDX-License-Identifier: Apache-2.0
// How the tensors of the end of a step lie along the pipeline. What a stage makes, its rank has and
// the others lack: a sum over the pipeline, to which they add nothing. So a gradient of a parameter
// that several stages use is partial along it, and so are the norms of gradients on their way to
// the clipping factor. Where micro-batches take several routes, a stage has copies: its parameters
// lie with each, and what adds up over micro-batches is partial too.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace hocket::parallel {

struct Layouts;
struct Pipeline;

/// Ascending ranks of the pipeline.
using PipelineRanks = std::vector<int32_t>;

bool contains(const PipelineRanks& ranks, int32_t rank);
PipelineRanks united(const PipelineRanks& left, const PipelineRanks& right);

class PipelineOwners {
 public:
  PipelineOwners(const graph::Graph& graph, const Pipeline& pipeline);

  /// The ranks that run the node: of a layer, one for every route that differs in it; of an
  /// optimizer node that sums, those that have a part.
  const PipelineRanks& runs(graph::NodeId node) const { return runs_[node]; }
  /// The ranks that have the tensor, or a part of it; of a parameter those whose stages read it.
  const PipelineRanks& has(graph::TensorId tensor) const { return has_[tensor]; }
  /// What the ranks have are parts of a sum.
  bool partial(graph::TensorId tensor) const { return partial_[tensor]; }
  /// No one rank that has all inputs of this optimizer node has all its readers, whose ranks run
  /// it: each input is summed over the pipeline.
  bool gathers(graph::NodeId node) const { return gathers_[node]; }
  /// The node makes, of contributions to a parameter's gradient, (part of) their total.
  bool sums_gradients(graph::NodeId node) const { return sums_gradients_[node]; }
  /// These nodes of one gradient, an index into Graph::grads, in the graph's order.
  const std::vector<graph::NodeId>& sums_of(size_t grad) const { return sums_of_[grad]; }

 private:
  void place_layers(const graph::Graph& graph, const Pipeline& pipeline);
  std::vector<PipelineRanks> ranks_of_updates(const graph::Graph& graph) const;
  void place_step(const graph::Graph& graph, const Pipeline& pipeline);
  void place_gathering(const graph::Graph& graph, const Pipeline& pipeline);
  void mark_addends(const graph::Graph& graph);
  void find_gradient_sums(const graph::Graph& graph);

  std::vector<PipelineRanks> runs_, has_;
  std::vector<bool> partial_, gathers_, sums_gradients_;
  std::vector<std::vector<graph::NodeId>> sums_of_;
};

/// Says so in the layouts: partial along `axis`, that of the pipeline.
void set_partial_along_pipeline(const graph::Graph& graph, const PipelineOwners& owners,
                                int32_t axis, Layouts* layouts);

}  // namespace hocket::parallel

// SPDX-License-Identifier: Apache-2.0
// Shares of a dim per rank where they are uneven: of tokens as the plan gives them, of all else as
// evenly as the dim divides, axis by axis.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"
#include "parallel/layouts/layouts.h"

namespace hocket::parallel {

class Shares {
 public:
  Shares(const graph::Graph& graph, const graph::Mesh& mesh, TokenShares given);

  /// Returns whether the plan gives the shares of tokens.
  bool are_given() const { return !given_.samples.empty() || !given_.along_cp.empty(); }
  /// Returns the sizes of the blocks into which these axes, the outermost first, cut a dim of the
  /// tensor. Empty: the blocks are even (graph::share). A block may be empty.
  std::vector<int64_t> sizes(const graph::Graph& graph, graph::TensorId id, int dim,
                             const std::vector<int32_t>& axes) const;
  /// Returns the layout of the tensor with the sizes of its blocks.
  graph::Layout given(const graph::Graph& graph, graph::TensorId id, graph::Layout layout) const;
  /// Adds the block sizes to all layouts of the graph.
  void give(const graph::Graph& graph, Layouts* layouts) const;

 private:
  bool may_be_tokens(const graph::Graph& graph, graph::TensorId id, int dim,
                     const std::vector<int32_t>& axes) const;
  bool is_data_axis(int32_t axis) const;
  bool is_context_axis(int32_t axis) const;
  int64_t ranks_of_tokens() const;
  std::vector<int64_t> sizes_of_tokens(const std::vector<int32_t>& axes) const;

  const graph::Mesh& mesh_;
  const TokenShares given_;
  int64_t tokens_ = 0;           // of a micro-batch; 0: varies from step to step
  std::vector<bool> of_params_;  // by tensor: parameters, states, gradients, optimizer outputs
};

/// Returns by axis the coordinates after which the sizes of some tensor change. Ranks between two
/// such coordinates on every axis have equal sizes of all tensors.
std::vector<std::vector<int32_t>> size_boundaries(const graph::Graph& graph, const Layouts& layouts,
                                                  const graph::Mesh& mesh);

}  // namespace hocket::parallel

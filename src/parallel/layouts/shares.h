// SPDX-License-Identifier: Apache-2.0
// How much of a dim each rank has where ranks have unlike parts: of tokens as the plan deals them
// out, of all else as evenly as it divides, axis by axis.
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

  /// Whether the plan deals out tokens.
  bool are_given() const { return !given_.samples.empty() || !given_.along_cp.empty(); }
  /// The sizes of the blocks that these axes, the outermost first, make of a dim of the tensor.
  /// Empty: as even as they divide (graph::share). A block may be of nothing.
  std::vector<int64_t> sizes(const graph::Graph& graph, graph::TensorId id, int dim,
                             const std::vector<int32_t>& axes) const;
  /// The layout of the tensor with the sizes of its blocks.
  graph::Layout given(const graph::Graph& graph, graph::TensorId id, graph::Layout layout) const;
  /// Gives all layouts their sizes; `graph`: that they are of.
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
  int64_t tokens_ = 0;           // of a micro-batch; 0: as many as a step brings
  std::vector<bool> of_params_;  // by tensor: gradients and what the optimizer makes
};

/// By axis: the coordinates behind which ranks have more or less of some tensor than before, so
/// that ranks between two such coordinates on every axis have as much of everything.
std::vector<std::vector<int32_t>> unlike_neighbours(const graph::Graph& graph,
                                                    const Layouts& layouts,
                                                    const graph::Mesh& mesh);

}  // namespace hocket::parallel

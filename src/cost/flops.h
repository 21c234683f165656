// SPDX-License-Identifier: Apache-2.0
// Model FLOPs for MFU: what the mathematics of the model asks for, whatever the plan does. Defined
// in docs/outputs.md: matrix products and attention of the forward pass, times three; active
// experts only; no recomputation; causal attention counted by the keys that a query really sees.
#pragma once

#include "graph/graph.h"

namespace hocket::cost {

/// FLOPs of one forward pass over the graph's tokens (a multiply-add is 2).
struct ModelFlops {
  double linear = 0;     ///< linear and grouped_linear
  double attention = 0;  ///< q k^T and the weighted sum of v
  double head = 0;       ///< logits of the fused head

  double forward() const { return linear + attention + head; }
  /// Forward and backward: the gradient of a product is two products of its size.
  double training() const { return 3 * forward(); }
};

/// `mean_keys`: keys that a query attends to on average over the packed documents, itself included:
/// sum over documents of L(L+1)/2, divided by the number of tokens. 0: one document per sequence,
/// (S+1)/2 with S from attention's attribute `seq`, or all tokens without it.
ModelFlops model_flops(const graph::Graph& graph, double mean_keys = 0);

}  // namespace hocket::cost

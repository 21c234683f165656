// SPDX-License-Identifier: Apache-2.0
// Model FLOPs for MFU: the arithmetic that the model's mathematics requires under any plan. Defined
// in docs/outputs.md: matrix products and attention of the forward pass, times three; active
// experts only; no recomputation; causal attention counted by the keys that a query sees.
#pragma once

#include "graph/graph.h"

namespace hocket::cost {

/// FLOPs of one forward pass over the graph's tokens (a multiply-add is 2).
struct ModelFlops {
  double linear = 0;     ///< linear and grouped_linear
  double attention = 0;  ///< q k^T and the weighted sum of v
  double head = 0;       ///< logits of the fused head

  double forward() const { return linear + attention + head; }
  /// Returns forward plus backward: the gradient of a product is two products of its size.
  double training() const { return 3 * forward(); }
};

/// Returns the model FLOPs of a graph. `mean_keys`: keys that a query attends to on average over
/// the packed documents, itself included: the sum of L(L+1)/2 over documents, divided by the number
/// of tokens. 0: one document per sequence, (S+1)/2 with S from attention's attribute `seq`, or all
/// tokens without it.
ModelFlops model_flops(const graph::Graph& graph, double mean_keys = 0);

}  // namespace hocket::cost

// SPDX-License-Identifier: Apache-2.0
// Sum of the forward nodes' products.
#include "cost/flops.h"

#include "base/error.h"

namespace hocket::cost {

ModelFlops model_flops(const graph::Graph& graph, double mean_keys) {
  ModelFlops total;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != graph::Phase::forward || node.recompute) continue;
    const auto type = [&](size_t i) -> const graph::TensorType& {
      HOCKET_CHECK(i < node.in.size(), "{} has {} inputs", node.op, node.in.size());
      return graph.tensor(node.in[i]).type;
    };
    const auto numel = [&](size_t i) { return static_cast<double>(type(i).numel()); };
    if (node.op == "linear") {
      total.linear += 2 * static_cast<double>(type(0).dims[0]) * numel(1);
    } else if (node.op == "grouped_linear") {
      const graph::TensorType& x = type(0);
      // Every token visits top_k experts; its rows are spread over all of them.
      const double rows = static_cast<double>(x.dims[1]) * x.top_k;
      total.linear += 2 * rows * numel(1) / static_cast<double>(type(1).dims[0]);
    } else if (node.op == "attention") {
      const double tokens = static_cast<double>(type(0).dims[0]);
      const double sequence =
          static_cast<double>(node.attrs.i_or("seq", static_cast<int64_t>(tokens)));
      const double keys = mean_keys > 0 ? mean_keys : (sequence + 1) / 2;
      total.attention += 4 * keys * numel(0);
    } else if (node.op == "linear_cross_entropy") {
      total.head += 2 * static_cast<double>(type(0).dims[0]) * numel(1);
    }
  }
  return total;
}

}  // namespace hocket::cost

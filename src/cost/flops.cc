// SPDX-License-Identifier: Apache-2.0
// Sum of the products of the forward nodes.
#include "cost/flops.h"

#include <vector>

#include "ops/op.h"

namespace hocket::cost {

ModelFlops model_flops(const graph::Graph& graph, double mean_keys) {
  ModelFlops total;
  std::vector<graph::TensorType> in;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != graph::Phase::forward || node.recompute) continue;
    const ops::Op& op = ops::find(node.op);
    if (!op.model_flops) continue;
    in.clear();
    for (const graph::TensorId id : node.in) {
      in.push_back(graph.tensor(id).type);
    }
    const double flops = op.model_flops(node.attrs, in, mean_keys);
    if (op.family == ops::Family::attention) {
      total.attention += flops;
    } else if (op.family == ops::Family::loss) {
      total.head += flops;
    } else {
      total.linear += flops;
    }
  }
  return total;
}

}  // namespace hocket::cost

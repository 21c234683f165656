// SPDX-License-Identifier: Apache-2.0
#include "models/build.h"

#include <algorithm>

#include "base/error.h"
#include "models/builder.h"
#include "ops/op.h"

namespace hocket::models {

graph::Graph build(const ModelConfig& config, const BuildOptions& options) {
  Builder builder(config, options);
  builder.build();
  return builder.take_graph();
}

int64_t param_count(const graph::Graph& graph) {
  int64_t count = 0;
  for (const graph::Tensor& tensor : graph.tensors) {
    if (tensor.kind == graph::TensorKind::param) {
      count += tensor.type.numel();
    }
  }
  return count;
}

int64_t active_param_count(const graph::Graph& graph) {
  int64_t count = param_count(graph);
  std::vector<bool> seen(graph.tensors.size(), false);
  for (const graph::Node& node : graph.nodes) {
    if (ops::find(node.op).family != ops::Family::expert_products) continue;
    const auto id = static_cast<size_t>(node.in[1]);
    const graph::Tensor& weight = graph.tensors[id];
    if (!weight.expert || weight.kind != graph::TensorKind::param || seen[id]) continue;
    seen[id] = true;
    const int64_t experts = weight.type.dims[0];
    const int64_t used = std::min<int64_t>(graph.tensor(node.in[0]).type.top_k, experts);
    count -= weight.type.numel() / experts * (experts - used);
  }
  return count;
}

}  // namespace hocket::models

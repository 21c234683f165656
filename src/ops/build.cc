// SPDX-License-Identifier: Apache-2.0
#include "ops/build.h"

#include "base/error.h"

namespace hocket::ops {

std::vector<graph::TensorId> apply(graph::Graph& graph, std::string op, graph::Attrs attrs,
                                   std::vector<graph::TensorId> in, std::string name, int32_t layer,
                                   graph::Phase phase) {
  // Infers the types of the outputs (an op that refuses its inputs is named by `name`), then adds
  // them and the node. Output i > 0 is called "name.i".
  const Op& rule = find(op);
  std::vector<TensorType> types;
  for (graph::TensorId id : in) {
    types.push_back(graph.tensor(id).type);
  }
  std::vector<TensorType> out_types;
  try {
    out_types = rule.infer(attrs, types);
  } catch (const Error& error) {
    fail(name, "{}", error.what());
  }
  graph::Node node;
  node.op = std::move(op);
  node.attrs = std::move(attrs);
  node.in = std::move(in);
  node.phase = phase;
  node.layer = layer;
  for (size_t i = 0; i < out_types.size(); ++i) {
    graph::Tensor tensor;
    tensor.name = i == 0 ? name : name + "." + std::to_string(i);
    tensor.type = std::move(out_types[i]);
    tensor.producer = static_cast<graph::NodeId>(graph.nodes.size());
    tensor.layer = layer;
    node.out.push_back(graph.add_tensor(std::move(tensor)));
  }
  graph.nodes.push_back(node);
  return node.out;
}

void shorten_gradient(graph::Graph& graph, graph::TensorId gradient, graph::DType param) {
  if (graph.tensor(gradient).type.dtype == param) return;
  graph::Node& node = graph.nodes[static_cast<size_t>(graph.tensor(gradient).producer)];
  node.attrs.set("short_gradient", int64_t{1});
  std::vector<TensorType> types;
  for (const graph::TensorId id : node.in) {
    types.push_back(graph.tensor(id).type);
  }
  types.resize(types.size() - static_cast<size_t>(node.accumulate.size()));
  const std::vector<TensorType> made = find(node.op).infer(node.attrs, types);
  for (size_t i = 0; i < made.size(); ++i) {
    graph.tensors[static_cast<size_t>(node.out[i])].type = made[i];
  }
  if (const graph::DType is = graph.tensor(gradient).type.dtype; is != param) {
    fail(graph.tensor(gradient).name, "{} makes a gradient of {}; expected one of {}", node.op,
         to_string(is), to_string(param));
  }
}

}  // namespace hocket::ops

// SPDX-License-Identifier: Apache-2.0
#include "planner/model_table.h"

#include <fmt/format.h>

#include <set>

#include "ops/op.h"
#include "passes/pass.h"

namespace hocket::planner {

namespace {

using graph::Graph;
using graph::Phase;
using graph::Tensor;
using graph::TensorId;
using graph::TensorKind;

/// The layer of a kind that stands for all of them, by Node::layer.
struct Representatives {
  std::vector<LayerKind> kind_of;
  std::array<int32_t, kLayerKinds> layer{};  ///< kNone: there is none
  /// The kind whose table a node or tensor belongs to; false: of none.
  bool find(int32_t of_layer, LayerKind* kind) const {
    for (size_t k = 0; k < kLayerKinds; ++k) {
      if (has[k] && layer[k] == of_layer) {
        *kind = static_cast<LayerKind>(k);
        return true;
      }
    }
    return false;
  }
  std::array<bool, kLayerKinds> has{};
};

Representatives representatives(const Graph& graph) {
  Representatives found;
  found.kind_of.assign(static_cast<size_t>(graph.num_layers), LayerKind::dense);
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind == TensorKind::param && tensor.expert && tensor.layer >= 0) {
      found.kind_of[static_cast<size_t>(tensor.layer)] = LayerKind::experts;
    }
  }
  const auto add = [&](LayerKind kind, int32_t layer) {
    found.layer[static_cast<size_t>(kind)] = layer;
    found.has[static_cast<size_t>(kind)] = true;
  };
  add(LayerKind::embedding, -1);
  add(LayerKind::head, graph.num_layers);
  // The last of each kind: what the first one keeps of the embedding is no different.
  for (int32_t layer = 0; layer < graph.num_layers; ++layer) {
    add(found.kind_of[static_cast<size_t>(layer)], layer);
  }
  return found;
}

bool is_residual(const graph::TensorType& type, const graph::TensorType& stream) {
  return !type.routed() && type.dims == stream.dims;
}

/// How ranks of tp share an activation, or a parameter.
Share share_of(const Tensor& tensor, const graph::TensorType& stream) {
  if (tensor.kind == TensorKind::param) {
    if (tensor.expert) return Share::experts;
    return tensor.type.dims.size() > 1 ? Share::features : Share::tokens;
  }
  if (tensor.type.routed()) return Share::experts;
  return is_residual(tensor.type, stream) || tensor.type.dims.size() < 2 ? Share::tokens
                                                                         : Share::features;
}

/// How they share a node's work.
Share share_of(const Graph& graph, const graph::Node& node, const graph::TensorType& stream) {
  const auto any = [&](const std::vector<TensorId>& list, auto test) {
    for (const TensorId id : list) {
      if (test(graph.tensor(id))) return true;
    }
    return false;
  };
  const auto routed = [](const Tensor& tensor) { return tensor.type.routed() || tensor.expert; };
  if (any(node.in, routed) || any(node.out, routed)) return Share::experts;
  const ops::Op& op = ops::find(node.op);
  if (op.cost_class != ops::CostClass::memory) return Share::features;
  const auto inside = [&](const Tensor& tensor) {
    return tensor.type.dims.size() > 2 ||
           (tensor.kind == TensorKind::param && tensor.type.dims.size() > 1);
  };
  if (any(node.in, inside) || any(node.out, inside)) return Share::features;
  return any(node.out, [&](const Tensor& tensor) { return is_residual(tensor.type, stream); }) ||
                 any(node.in,
                     [&](const Tensor& tensor) { return is_residual(tensor.type, stream); })
             ? Share::tokens
             : Share::features;
}

/// The type of the residual stream: what the first layer reads.
graph::TensorType stream_type(const Graph& graph) {
  for (const graph::Node& node : graph.nodes) {
    if (node.layer == -1 && node.phase == Phase::forward && !node.out.empty()) {
      const graph::TensorType& type = graph.tensor(node.out[0]).type;
      if (type.dims.size() == 2) return type;
    }
  }
  return {};
}

NodeWork work_of(const Graph& graph, const graph::Node& node, const std::set<TensorId>& gradients,
                 const graph::TensorType& stream) {
  const ops::Op& op = ops::find(node.op);
  std::vector<graph::TensorType> in, out;
  NodeWork work;
  double parameters = 0;
  bool of_weights = false;
  for (const TensorId id : node.in) {
    const Tensor& tensor = graph.tensor(id);
    in.push_back(tensor.type);
    if (tensor.kind == TensorKind::param) {
      parameters += static_cast<double>(tensor.type.bytes());
    }
  }
  for (const TensorId id : node.out) {
    out.push_back(graph.tensor(id).type);
    if (gradients.count(id) > 0) {
      parameters += static_cast<double>(graph.tensor(id).type.bytes());
      of_weights = true;
    }
  }
  const ops::Cost cost = ops::cost_of(op, {node.attrs, in, out, 0, graph.symbols});
  work.op = op.name;
  work.dtype = in.empty() ? stream.dtype : in[0].dtype;
  if (!graph::is_floating(work.dtype)) {
    work.dtype = stream.dtype;
  }
  work.share = share_of(graph, node, stream);
  work.flops = cost.flops;
  work.parameters = std::min(parameters, static_cast<double>(cost.bytes));
  work.activations = static_cast<double>(cost.bytes) - work.parameters;
  if (node.phase == Phase::backward) {
    // Gradients of inputs and of a norm's weights are made together.
    const bool alone = of_weights && node.out.size() == 1;
    work.part = alone ? PassPart::weights : PassPart::inputs;
  }
  return work;
}

/// Adds what the backward pass reads of the forward pass, by the layer that makes it.
void add_kept(const Graph& graph, const Representatives& layers, const graph::TensorType& stream,
              ModelTable* table) {
  std::set<TensorId> kept;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != Phase::backward) continue;
    for (const TensorId id : node.in) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.kind != TensorKind::activation || tensor.producer == graph::kNone) continue;
      const graph::Node& producer = graph.nodes[static_cast<size_t>(tensor.producer)];
      if (producer.phase == Phase::forward) {
        kept.insert(id);
      }
    }
  }
  for (const TensorId id : kept) {
    const Tensor& tensor = graph.tensor(id);
    LayerKind kind{};
    if (!layers.find(tensor.layer, &kind)) continue;
    LayerWork& layer = table->layers[static_cast<size_t>(kind)];
    of(layer.kept, share_of(tensor, stream)) += static_cast<double>(tensor.type.bytes());
  }
}

/// Bytes of keys and values, and of queries, of one layer with attention.
void add_attention(const Graph& graph, ModelTable* table) {
  for (const graph::Node& node : graph.nodes) {
    const ops::Op& op = ops::find(node.op);
    if (node.phase != Phase::forward || op.cost_class != ops::CostClass::attention) continue;
    table->head_bytes = static_cast<double>(graph.tensor(node.in[0]).type.bytes());
    table->key_bytes = 0;
    for (size_t i = 1; i < 3 && i < node.in.size(); ++i) {
      table->key_bytes += static_cast<double>(graph.tensor(node.in[i]).type.bytes());
    }
    return;
  }
}

/// What gradients and the optimizer's states are beside the parameters.
void add_states(const graph::Graph& graph, ModelTable* table) {
  double parameters = 0, gradients = 0, states = 0;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind == TensorKind::param) {
      parameters += static_cast<double>(tensor.type.bytes());
    } else if (tensor.kind == TensorKind::state) {
      states += static_cast<double>(tensor.type.bytes());
    }
  }
  for (const graph::ParamGrad& grad : graph.grads) {
    gradients += static_cast<double>(graph.tensor(grad.contributions.front()).type.bytes());
  }
  if (parameters == 0) return;
  table->gradient_share = gradients / parameters;
  table->state_share = states / parameters;
}

}  // namespace

ModelTable table_of(const graph::Graph& reference, const char* recompute) {
  Graph graph = reference;
  passes::PassRunner({"recompute"}, {},
                     passes::PassOptions({fmt::format("recompute={}", recompute)}))
      .run(graph);
  const Representatives layers = representatives(graph);
  const graph::TensorType stream = stream_type(graph);
  ModelTable table;
  table.kind_of = layers.kind_of;
  table.residual_bytes = static_cast<double>(stream.bytes());
  table.element_bytes = stream.bytes_of(1);
  std::set<TensorId> gradients;
  for (const graph::ParamGrad& grad : graph.grads) {
    gradients.insert(grad.contributions.begin(), grad.contributions.end());
  }
  for (const graph::Node& node : graph.nodes) {
    LayerKind kind{};
    if (node.phase == Phase::optimizer || !layers.find(node.layer, &kind)) continue;
    table.layers[static_cast<size_t>(kind)].nodes.push_back(
        work_of(graph, node, gradients, stream));
  }
  for (const Tensor& tensor : graph.tensors) {
    LayerKind kind{};
    if (tensor.kind != TensorKind::param || !layers.find(tensor.layer, &kind)) continue;
    LayerWork& layer = table.layers[static_cast<size_t>(kind)];
    of(layer.parameters, share_of(tensor, stream)) += static_cast<double>(tensor.type.numel());
  }
  add_kept(graph, layers, stream, &table);
  add_attention(graph, &table);
  add_states(graph, &table);
  return table;
}

}  // namespace hocket::planner

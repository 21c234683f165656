// SPDX-License-Identifier: Apache-2.0
#include "planner/model_table.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "ops/op.h"
#include "passes/pass.h"

namespace hocket::planner {

namespace {

using graph::Graph;
using graph::Phase;
using graph::Tensor;
using graph::TensorId;
using graph::TensorKind;

/// The work of every layer, by Node::layer: that of the embedding is before the first.
class Layers {
 public:
  explicit Layers(const Graph& graph) : works_(graph.num_layers + 2) {}
  /// Returns the work of a layer; null: the number is of no layer, as of optimizer state.
  LayerWork* find(int32_t layer) {
    const size_t at = layer + 1;
    return layer < -1 || at >= works_.size() ? nullptr : &works_[at];
  }
  const LayerWork& embedding() const { return works_.front(); }
  const LayerWork& head() const { return works_.back(); }
  const LayerWork& of(size_t layer) const { return works_[layer + 1]; }
  size_t count() const { return works_.size() - 2; }

 private:
  std::vector<LayerWork> works_;
};

bool is_residual(const graph::TensorType& type, const graph::TensorType& stream) {
  return !type.routed() && type.dims == stream.dims;
}

/// Returns how ranks of tp share an activation or a parameter.
Share share_of(const Tensor& tensor, const graph::TensorType& stream) {
  if (tensor.kind == TensorKind::param) {
    if (tensor.expert) return Share::experts;
    return tensor.type.dims.size() > 1 ? Share::features : Share::tokens;
  }
  if (tensor.type.routed()) return Share::experts;
  return is_residual(tensor.type, stream) || tensor.type.dims.size() < 2 ? Share::tokens
                                                                         : Share::features;
}

/// Returns how they share a node's work.
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

/// Returns the type of the residual stream, the first layer's input.
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
      parameters += tensor.type.bytes();
    }
  }
  for (const TensorId id : node.out) {
    out.push_back(graph.tensor(id).type);
    if (gradients.count(id) > 0) {
      parameters += graph.tensor(id).type.bytes();
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
  work.parameters = std::min<double>(parameters, cost.bytes);
  work.activations = cost.bytes - work.parameters;
  if (node.phase == Phase::backward) {
    // Gradients of inputs and of a norm's weights are made together.
    const bool alone = of_weights && node.out.size() == 1;
    work.part = alone ? PassPart::weights : PassPart::inputs;
  }
  return work;
}

/// Adds the activations that the backward pass reads, by the producing layer.
void add_kept(const Graph& graph, const graph::TensorType& stream, Layers* layers) {
  std::set<TensorId> kept;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != Phase::backward) continue;
    for (const TensorId id : node.in) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.kind != TensorKind::activation || tensor.producer == graph::kNone) continue;
      const graph::Node& producer = graph.nodes[tensor.producer];
      if (producer.phase == Phase::forward) {
        kept.insert(id);
      }
    }
  }
  for (const TensorId id : kept) {
    const Tensor& tensor = graph.tensor(id);
    if (LayerWork* const layer = layers->find(tensor.layer)) {
      of(layer->kept, share_of(tensor, stream)) += tensor.type.bytes();
    }
  }
}

/// Adds the layers' reads of the embedding's parameters.
void add_tied(const Graph& graph, const graph::TensorType& stream, Layers* layers) {
  constexpr int32_t kOfEmbedding = -1;
  std::set<std::pair<int32_t, TensorId>> read;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase == Phase::optimizer || node.layer == kOfEmbedding) continue;
    for (const TensorId id : node.in) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.kind == TensorKind::param && tensor.layer == kOfEmbedding) {
        read.emplace(node.layer, id);
      }
    }
  }
  for (const auto& [at, id] : read) {
    if (LayerWork* const layer = layers->find(at)) {
      const Tensor& tensor = graph.tensor(id);
      of(layer->tied, share_of(tensor, stream)) += tensor.type.numel();
    }
  }
}

/// Adds the bytes of keys and values, and of queries.
void add_attention(const Graph& graph, Layers* layers) {
  for (const graph::Node& node : graph.nodes) {
    const ops::Op& op = ops::find(node.op);
    if (node.phase != Phase::forward || op.cost_class != ops::CostClass::attention) continue;
    LayerWork* const layer = layers->find(node.layer);
    if (!layer) continue;
    layer->head_bytes += graph.tensor(node.in[0]).type.bytes();
    for (size_t i = 1; i < 3 && i < node.in.size(); ++i) {
      layer->key_bytes += graph.tensor(node.in[i]).type.bytes();
    }
  }
}

/// Adds gradients and optimizer states beside the parameters.
void add_states(const graph::Graph& graph, ModelTable* table) {
  double parameters = 0, gradients = 0, states = 0;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind == TensorKind::param) {
      parameters += tensor.type.bytes();
    } else if (tensor.kind == TensorKind::state) {
      states += tensor.type.bytes();
    }
  }
  for (const graph::ParamGrad& grad : graph.grads) {
    gradients += graph.tensor(grad.contributions.front()).type.bytes();
  }
  if (parameters == 0) return;
  table->gradient_share = gradients / parameters;
  table->state_share = states / parameters;
}

/// Returns everything except the types of layers.
ModelTable totals_of(const Graph& graph, const graph::TensorType& stream) {
  ModelTable table;
  table.residual_bytes = stream.bytes();
  table.element_bytes = stream.bytes_of(1);
  add_states(graph, &table);
  return table;
}

Layers layers_of(const Graph& graph, const graph::TensorType& stream) {
  Layers layers(graph);
  std::set<TensorId> gradients;
  for (const graph::ParamGrad& grad : graph.grads) {
    gradients.insert(grad.contributions.begin(), grad.contributions.end());
  }
  for (const graph::Node& node : graph.nodes) {
    LayerWork* const layer = layers.find(node.layer);
    if (node.phase != Phase::optimizer && layer) {
      layer->nodes.push_back(work_of(graph, node, gradients, stream));
    }
  }
  for (const Tensor& tensor : graph.tensors) {
    LayerWork* const layer = layers.find(tensor.layer);
    if (tensor.kind != TensorKind::param || !layer) continue;
    of(layer->parameters, share_of(tensor, stream)) += tensor.type.numel();
    layer->has_experts = layer->has_experts || tensor.expert;
  }
  add_tied(graph, stream, &layers);
  add_kept(graph, stream, &layers);
  add_attention(graph, &layers);
  return layers;
}

}  // namespace

std::vector<ModelTable> tables_of(const graph::Graph& reference,
                                  std::span<const char* const> recompute) {
  std::vector<ModelTable> tables;
  std::vector<Layers> layers;  // by table
  for (const char* const way : recompute) {
    Graph graph = reference;
    passes::PassRunner({"recompute"}, {}, passes::PassOptions({fmt::format("recompute={}", way)}))
        .run(graph);
    const graph::TensorType stream = stream_type(graph);
    layers.push_back(layers_of(graph, stream));
    tables.push_back(totals_of(graph, stream));
    tables.back().layer_types = {layers.back().embedding(), layers.back().head()};
  }
  for (size_t layer = 0; layer < layers.front().count(); ++layer) {
    const auto is_alike = [&](size_t type) {
      for (size_t t = 0; t < tables.size(); ++t) {
        if (tables[t].layer_types[type] != layers[t].of(layer)) return false;
      }
      return true;
    };
    size_t type = kFirstLayerType;
    while (type < tables.front().layer_types.size() && !is_alike(type)) {
      ++type;
    }
    for (size_t t = 0; t < tables.size(); ++t) {
      if (type == tables[t].layer_types.size()) {
        tables[t].layer_types.push_back(layers[t].of(layer));
      }
      tables[t].type_of.push_back(type);
    }
  }
  return tables;
}

}  // namespace hocket::planner

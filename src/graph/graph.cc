// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include <fmt/format.h>

#include "base/error.h"

namespace hocket::graph {

const char* to_string(Phase phase) {
  constexpr const char* kNames[] = {"forward", "backward", "optimizer"};
  return kNames[place_of(phase)];
}

const char* to_string(TensorKind kind) {
  constexpr const char* kNames[] = {"activation", "param", "state", "input"};
  return kNames[place_of(kind)];
}

const char* to_string(StateKind kind) {
  constexpr const char* kNames[] = {"none", "optimizer", "cache"};
  return kNames[place_of(kind)];
}

Dim Graph::symbol(Symbol symbol) {
  for (const Symbol& known : symbols) {
    if (known.name == symbol.name) fail("symbol", "'{}' is there twice", symbol.name);
  }
  const Dim dim = Dim::of(static_cast<SymbolId>(symbols.size()), symbol);
  symbols.push_back(std::move(symbol));
  return dim;
}

TensorId Graph::add_tensor(Tensor tensor) {
  tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(tensors.size() - 1);
}

TensorId Graph::input(std::string name, TensorType type, bool per_step) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.type = std::move(type);
  tensor.kind = TensorKind::input;
  tensor.per_step = per_step;
  return add_tensor(std::move(tensor));
}

TensorId Graph::param(std::string name, TensorType type, int32_t layer, Init init, bool expert) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.type = std::move(type);
  tensor.kind = TensorKind::param;
  tensor.layer = layer;
  tensor.init = init;
  tensor.expert = expert;
  return add_tensor(std::move(tensor));
}

TensorId Graph::find(std::string_view name) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return static_cast<TensorId>(i);
  }
  return kNone;
}

std::vector<bool> read_in_step(const Graph& graph) {
  std::vector<bool> read(graph.tensors.size(), false);
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::optimizer) continue;
    for (const TensorId input : node.in) {
      const NodeId producer = graph.tensor(input).producer;
      read[static_cast<size_t>(input)] =
          producer != kNone && graph.nodes[static_cast<size_t>(producer)].phase != Phase::optimizer;
    }
  }
  return read;
}

std::string layer_name(int32_t layer, int32_t num_layers) {
  const bool known = num_layers > 0;
  if (layer >= 0 && (!known || layer < num_layers)) return fmt::format("L{}", layer);
  if (!known || layer == kNoLayer) return "";
  return layer < 0 ? "embedding" : "head";
}

}  // namespace hocket::graph

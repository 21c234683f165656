// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include "base/error.h"

namespace hocket::graph {

const char* to_string(Phase phase) {
  constexpr const char* kNames[] = {"forward", "backward", "optimizer"};
  return kNames[static_cast<int>(phase)];
}

const char* to_string(TensorKind kind) {
  constexpr const char* kNames[] = {"activation", "param", "state", "input"};
  return kNames[static_cast<int>(kind)];
}

TensorId Graph::add_tensor(Tensor t) {
  tensors.push_back(std::move(t));
  return static_cast<TensorId>(tensors.size() - 1);
}

TensorId Graph::input(std::string name, TensorType type, bool per_step) {
  Tensor t;
  t.name = std::move(name);
  t.type = std::move(type);
  t.kind = TensorKind::input;
  t.per_step = per_step;
  return add_tensor(std::move(t));
}

TensorId Graph::param(std::string name, TensorType type, int32_t layer, Init init, bool expert) {
  Tensor t;
  t.name = std::move(name);
  t.type = std::move(type);
  t.kind = TensorKind::param;
  t.layer = layer;
  t.init = init;
  t.expert = expert;
  return add_tensor(std::move(t));
}

TensorId Graph::find(std::string_view name) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return static_cast<TensorId>(i);
  }
  return kNone;
}

}  // namespace hocket::graph

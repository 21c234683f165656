// SPDX-License-Identifier: Apache-2.0
#include "models/lora.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "graph/names.h"
#include "ops/build.h"
#include "ops/rules.h"

namespace hocket::models {

using graph::Dims;
using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::TensorId;
using ops::product;

namespace {

namespace names = graph::names;

/// Rewrites a graph: the nodes of one op after the other, with those of adapters in between.
class Transform {
 public:
  Transform(Graph& graph, const LoraPlan& plan, bool train)
      : graph_(graph), plan_(plan), dropout_(train ? plan.lora.lora_dropout : 0) {
    for (const LoraTarget& target : plan.targets) {
      targets_[target.weight] = &target;
    }
  }
  void run();

 private:
  /// The parameter that a weight operand is, itself or cast.
  TensorId before_cast(TensorId id) const {
    const graph::NodeId made = graph_.tensor(id).producer;
    if (made == kNone) return id;
    const Node& node = graph_.nodes[static_cast<size_t>(made)];
    return node.op == "cast" ? node.in[0] : id;
  }
  TensorId param(const std::string& name, const Dims& dims, const Node& node, graph::DType dtype,
                 double bound, bool expert);
  TensorId dropped(const Node& node, TensorId input, const std::string& name);
  TensorId low(const LoraTarget& target, const Node& node, TensorId input, const std::string& name);
  void add(const LoraTarget& target, const Node& node);

  Graph& graph_;
  const LoraPlan& plan_;
  const double dropout_;
  std::map<std::string, const LoraTarget*> targets_;
  std::map<std::string, TensorId> low_of_;  // products with A, by A's name
  std::map<TensorId, TensorId> replaced_;
  int64_t num_dropouts_ = 0;
};

TensorId Transform::param(const std::string& name, const Dims& dims, const Node& node,
                          graph::DType dtype, double bound, bool expert) {
  return graph_.param(name, {dtype, dims}, node.layer, {graph::Init::Kind::uniform, bound}, expert);
}

TensorId Transform::dropped(const Node& node, TensorId input, const std::string& name) {
  if (dropout_ == 0) return input;
  // Beyond the numbers of the model's own dropouts.
  constexpr int64_t kFirstStream = int64_t{1} << 32;
  const graph::TensorType type = graph_.tensor(input).type;
  TensorId numbers = graph_.find(names::kTokenNumbers);
  if (numbers == kNone) {
    numbers = graph_.input(names::kTokenNumbers, {graph::DType::i64, {type.dims[0]}});
  }
  const graph::Attrs attrs{{"p", dropout_},
                           {"seed", plan_.lora.dropout_seed},
                           {"stream", kFirstStream + num_dropouts_++},
                           {"width", product(type.dims, 1, type.dims.size())}};
  return ops::apply(graph_, "dropout", attrs, {input, numbers}, name + ".lora_dropout",
                    node.layer)[0];
}

/// Returns scale * A x.
TensorId Transform::low(const LoraTarget& target, const Node& node, TensorId input,
                        const std::string& name) {
  const auto [known, fresh] = low_of_.try_emplace(target.a, kNone);
  if (!fresh) return known->second;
  const graph::DType dtype = graph_.tensor(input).type.dtype;
  const bool parts = target.parts.size() > 1;
  const int64_t width =
      product(target.a_dims, parts || target.expert ? 2 : 1, target.a_dims.size());
  const double bound = 1 / std::sqrt(static_cast<double>(width));
  const TensorId a = param(target.a, target.a_dims, node, dtype, bound, target.expert);
  const TensorId from = dropped(node, input, name);
  std::vector<TensorId> in{from, a};
  if (target.expert) {
    in.push_back(node.in[2]);
  }
  const TensorId product = ops::apply(graph_, node.op, {}, in, name + ".lora_A", node.layer)[0];
  std::vector<std::string> factors, kept;
  for (const int32_t part : target.parts) {
    const bool none = part == kNone;
    const LoraModule* const module = none ? nullptr : &plan_.modules[static_cast<size_t>(part)];
    factors.push_back(fmt::format("{}", none ? 0 : module->scale));
    kept.push_back(fmt::format("{}", none ? 0 : module->r));
  }
  std::vector<TensorId> scaled{product};
  if (target.expert) {
    scaled.push_back(node.in[2]);
  }
  const graph::Attrs attrs{{"factors", join(factors, " ")}, {"kept", join(kept, " ")}};
  known->second =
      ops::apply(graph_, "lora_scale", attrs, scaled, name + ".lora_scaled", node.layer)[0];
  return known->second;
}

void Transform::add(const LoraTarget& target, const Node& node) {
  const TensorId base = node.out[0];
  const std::string name = graph_.tensor(base).name;
  const TensorId input = before_cast(node.in[0]);
  const TensorId u = low(target, node, input, name);
  const TensorId b =
      param(target.b, target.b_dims, node, graph_.tensor(u).type.dtype, 0, target.expert);
  std::vector<TensorId> in{u, b};
  if (target.expert) {
    in.push_back(node.in[2]);
  }
  const char* const op = target.expert             ? "grouped_linear"
                         : target.parts.size() > 1 ? "batched_linear"
                                                   : "linear";
  graph_.tensors[static_cast<size_t>(base)].name = name + ".base";
  const TensorId sum = ops::apply(graph_, op, {}, in, name, node.layer)[0];
  Node& made = graph_.nodes.back();
  made.accumulate.add(0);
  made.in.push_back(base);
  replaced_[base] = sum;
}

void Transform::run() {
  std::vector<Node> nodes = std::move(graph_.nodes);
  graph_.nodes.clear();
  const auto follow = [this](TensorId& id) {
    if (const auto at = replaced_.find(id); at != replaced_.end()) {
      id = at->second;
    }
  };
  for (Node& node : nodes) {
    std::for_each(node.in.begin(), node.in.end(), follow);
    for (const TensorId id : node.out) {
      graph_.tensors[static_cast<size_t>(id)].producer =
          static_cast<graph::NodeId>(graph_.nodes.size());
    }
    graph_.nodes.push_back(node);
    if (node.op != "linear" && node.op != "grouped_linear") continue;
    const auto at = targets_.find(graph_.tensor(before_cast(node.in[1])).name);
    if (at != targets_.end()) {
      add(*at->second, node);
    }
  }
  std::for_each(graph_.outputs.begin(), graph_.outputs.end(), follow);
}

/// Removes a tensor that no node has. Requires: the graph is not differentiated.
void erase_tensor(Graph& graph, TensorId gone) {
  const auto follow = [&](std::vector<TensorId>& list) {
    for (TensorId& id : list) {
      id -= id > gone ? 1 : 0;
    }
  };
  graph.tensors.erase(graph.tensors.begin() + gone);
  for (Node& node : graph.nodes) {
    follow(node.in);
    follow(node.out);
  }
  follow(graph.losses);
  follow(graph.outputs);
}

/// Leaves out the gradient of a frozen head's weights, which the loss makes by itself.
void drop_frozen_head(Graph& graph) {
  for (Node& node : graph.nodes) {
    if (node.op != "linear_cross_entropy" || node.attrs.i("grad") == 0) continue;
    if (graph.tensor(node.in[1]).trained || node.attrs.i_or("frozen", 0) != 0) continue;
    const TensorId gradient = node.out[2];
    node.attrs.set("frozen", int64_t{1});
    node.out.erase(node.out.begin() + 2);
    erase_tensor(graph, gradient);
  }
}

}  // namespace

void apply_lora(Graph& graph, const LoraPlan& plan, bool train) {
  const std::set<std::string> saved(plan.saved.begin(), plan.saved.end());
  for (graph::Tensor& tensor : graph.tensors) {
    if (tensor.kind == graph::TensorKind::param) {
      tensor.trained = saved.contains(tensor.name);
    }
  }
  drop_frozen_head(graph);
  Transform(graph, plan, train).run();
}

void freeze(Graph& graph, const std::vector<std::string>& patterns, const std::string& where) {
  if (patterns.empty()) return;
  std::vector<std::string> params;
  for (const graph::Tensor& tensor : graph.tensors) {
    if (tensor.kind == graph::TensorKind::param) {
      params.push_back(tensor.name);
    }
  }
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (graph::Tensor& tensor : graph.tensors) {
      const bool fits = fnmatch(pattern.c_str(), tensor.name.c_str(), 0) == 0;
      if (tensor.kind != graph::TensorKind::param || !fits) continue;
      tensor.trained = false;
      any = true;
    }
    if (any) continue;
    const std::string near = nearest(pattern, params);
    fail(where, "train.freeze: {} matches no parameter; {}", quote(pattern),
         near.empty() ? "hocket graph lists them" : fmt::format("did you mean {}?", near));
  }
  const bool any = std::any_of(graph.tensors.begin(), graph.tensors.end(), [](const auto& tensor) {
    return tensor.kind == graph::TensorKind::param && tensor.trained;
  });
  if (!any) fail(where, "train.freeze leaves no parameter to train");
  drop_frozen_head(graph);
}

}  // namespace hocket::models

// SPDX-License-Identifier: Apache-2.0
#include "autodiff/autodiff.h"

#include <algorithm>
#include <numeric>

#include "autodiff/optimizer.h"
#include "base/error.h"
#include "graph/names.h"
#include "ops/build.h"
#include "ops/op.h"
#include "ops/rules.h"

namespace hocket::autodiff {

namespace names = graph::names;

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::Phase;
using graph::TensorId;
using graph::TensorKind;

namespace {

/// grad_out of a loss: the seed 1, which loss ops know by themselves.
constexpr TensorId kSeed = -2;

class Context;

class Differentiator {
 public:
  explicit Differentiator(Graph& graph) : graph_(graph) {
    size_t n = graph.tensors.size();
    wanted_.assign(n, false);
    grad_.assign(n, kNone);
    contributions_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      wanted_[i] = graph.tensors[i].kind == TensorKind::param && graph.tensors[i].trained;
    }
    for (const graph::Node& node : graph.nodes) {
      bool any =
          std::any_of(node.in.begin(), node.in.end(), [&](TensorId id) { return wanted_[id]; });
      // Integer outputs (routes, counts) carry no gradient.
      for (TensorId id : node.out) {
        wanted_[id] = any && graph::is_floating(graph.tensor(id).type.dtype);
      }
    }
    for (TensorId loss : graph.losses) {
      grad_[loss] = kSeed;
    }
  }

  void run();

 private:
  friend class Context;
  void pass_to_accumulators(Context& context);
  Graph& graph_;
  std::vector<bool> wanted_;
  std::vector<TensorId> grad_;
  std::vector<std::vector<TensorId>> contributions_;  // parameters only
};

class Context : public ops::GradContext {
 public:
  Context(Differentiator& differentiator, const graph::Node& node)
      : d_(differentiator), node_(node) {}
  const graph::Node& node() const override { return node_; }
  const graph::Tensor& tensor(TensorId id) const override { return d_.graph_.tensor(id); }
  TensorId grad_out(int i) const override { return d_.grad_[out(i)]; }
  bool needs(int i) const override { return d_.wanted_[in(i)]; }

  std::vector<TensorId> emit(std::string op, graph::Attrs attrs,
                             std::vector<TensorId> inputs) override {
    for (TensorId id : inputs) {
      if (id < 0) fail("autodiff", "{} of {} lacks a gradient that it needs", op, node_.op);
    }
    std::string name = "d." + tensor(node_.out[0]).name + "/" + op;
    auto outs = ops::apply(d_.graph_, std::move(op), std::move(attrs), std::move(inputs),
                           std::move(name), node_.layer, Phase::backward);
    d_.wanted_.resize(d_.graph_.tensors.size(), false);
    d_.grad_.resize(d_.graph_.tensors.size(), kNone);
    return outs;
  }

  std::vector<TensorId> emit_grad(std::string op, graph::Attrs attrs, std::vector<TensorId> inputs,
                                  int input, int output) override {
    const size_t o = static_cast<size_t>(output);
    const bool can = ops::find(op).accumulates.contains(o);
    TensorId sum = is_param(input) ? kNone : d_.grad_[in(input)];
    auto outs = emit(std::move(op), std::move(attrs), std::move(inputs));
    if (can && sum >= 0) {
      graph::Node& made = d_.graph_.nodes.back();
      made.accumulate.add(o);
      made.in.push_back(sum);
      d_.grad_[in(input)] = outs[o];
    } else {
      add_grad(input, outs[o]);
    }
    return outs;
  }

  void add_grad(int i, TensorId grad) override {
    if (!needs(i)) return;
    if (is_param(i)) {
      d_.contributions_[in(i)].push_back(grad);
      return;
    }
    TensorId& sum = d_.grad_[in(i)];
    if (sum == kNone) {
      sum = grad;
    } else {
      TensorId other = sum;
      TensorId total = emit(ops::of(ops::Meaning::sum).name, {}, {other, grad})[0];
      d_.grad_[in(i)] = total;
    }
  }

 private:
  size_t in(int i) const { return static_cast<size_t>(node_.in[i]); }
  size_t out(int i) const { return static_cast<size_t>(node_.out[i]); }
  bool is_param(int i) const { return tensor(node_.in[i]).kind == TensorKind::param; }

  Differentiator& d_;
  const graph::Node node_;  // a copy: emitting moves the vector
};

/// Passes on the gradient of every output that a node adds to its accumulator.
void Differentiator::pass_to_accumulators(Context& context) {
  const graph::Node& node = context.node();
  size_t accumulator = node.in.size() - node.accumulate.size();
  for (size_t output = 0; output < node.out.size(); ++output) {
    if (!node.accumulate.contains(output)) continue;
    const auto input = static_cast<int>(accumulator++);
    const TensorId grad = context.grad_out(static_cast<int>(output));
    if (grad != kNone) {
      context.add_grad(input, grad);
    }
  }
}

void Differentiator::run() {
  // Nodes backwards, each from the gradients of its outputs to those of its inputs, if any of its
  // outputs has one. A gradient that several nodes contribute to is summed as they come (by an
  // accumulating op, or the op that sums); those of a parameter are kept apart, one per use.
  NodeId forward = static_cast<NodeId>(graph_.nodes.size());
  for (NodeId id = forward; id-- > 0;) {
    const graph::Node& node = graph_.nodes[id];
    bool reached = std::any_of(node.out.begin(), node.out.end(), [&](TensorId tensor) {
      return grad_[tensor] != kNone && wanted_[tensor];
    });
    if (!reached) continue;
    const ops::Op& op = ops::find(node.op);
    if (!op.grad) fail("autodiff", "{} has no gradient", node.op);
    Context context(*this, node);
    pass_to_accumulators(context);
    op.grad(context);
  }
  for (size_t i = 0; i < contributions_.size(); ++i) {
    const auto& uses = contributions_[i];
    if (uses.empty()) continue;
    graph_.grads.push_back({static_cast<TensorId>(i), uses, uses.size() == 1 ? uses[0] : kNone});
    for (size_t k = 0; k < uses.size(); ++k) {
      graph::Tensor& use = graph_.tensors[uses[k]];
      use.name = names::kGradOf + graph_.tensors[i].name +
                 (uses.size() > 1 ? "#" + std::to_string(k) : "");
      use.of = static_cast<TensorId>(i);
    }
  }
}

/// Sums a parameter's contributions, in the order of use, by optimizer-phase nodes.
TensorId sum_up(Graph& graph, size_t grad) {
  const graph::ParamGrad& parts = graph.grads[grad];
  const std::string name = names::kGradOf + graph.tensor(parts.param).name;
  const int32_t layer = graph.tensor(parts.param).layer;
  TensorId sum = parts.contributions[0];
  for (size_t i = 1; i < parts.contributions.size(); ++i) {
    sum = ops::apply(graph, ops::of(ops::Meaning::sum).name, {}, {sum, parts.contributions[i]},
                     name, layer, Phase::optimizer)[0];
    graph.tensors[sum].of = parts.param;
  }
  graph.grads[grad].total = sum;
  return sum;
}

/// Indices into graph.grads.
std::vector<size_t> grads_by_name(const Graph& graph) {
  std::vector<size_t> list(graph.grads.size());
  std::iota(list.begin(), list.end(), size_t{0});
  std::sort(list.begin(), list.end(), [&](size_t left, size_t right) {
    return graph.tensor(graph.grads[left].param).name < graph.tensor(graph.grads[right].param).name;
  });
  return list;
}

/// Returns whether weight decay applies: to matrices, not to norms and biases, which begin as
/// constants.
bool is_decayed(const graph::Tensor& tensor) {
  return tensor.type.dims.size() > 1 && tensor.init.kind != graph::Init::Kind::constant;
}

}  // namespace

void differentiate(Graph& graph, GradType type) {
  if (graph.losses.empty()) fail("autodiff", "the graph has no loss");
  Differentiator(graph).run();
  if (type == GradType::sums) return;
  for (const graph::ParamGrad& grad : graph.grads) {
    for (const TensorId contribution : grad.contributions) {
      ops::shorten_gradient(graph, contribution, graph.tensor(grad.param).type.dtype);
    }
  }
}

void append_optimizer(Graph& graph, const OptimizerConfig& config) {
  // Per parameter, in name order: the sum of its gradient contributions, and the sum of squares.
  // All sums of squares give one clip coefficient and the gradient norm (an output). Then one
  // update per parameter. Values that change from step to step (learning rate, bias corrections)
  // are the input `hyper`.
  const std::vector<size_t> grads = grads_by_name(graph);
  if (grads.empty()) fail("autodiff", "no parameter has a gradient");
  std::vector<TensorId> params;
  std::vector<TensorId> sums;
  std::vector<TensorId> squares;
  for (const size_t grad : grads) {
    const TensorId param = graph.grads[grad].param;
    params.push_back(param);
    sums.push_back(sum_up(graph, grad));
    squares.push_back(ops::apply(graph, "sumsq", {}, {sums.back()},
                                 "sumsq." + graph.tensor(param).name, graph.tensor(param).layer,
                                 Phase::optimizer)[0]);
  }
  graph::Attrs clipping{{"max_norm", config.max_norm}};
  if (config.skip_above > 0) {
    clipping.set("skip_above", config.skip_above);
  }
  auto clip = ops::apply(graph, "clip_coef", clipping, squares, "clip_coef", graph::kNoLayer,
                         Phase::optimizer);
  graph.tensors[clip[1]].name = names::kGradNorm;
  graph.outputs.push_back(clip[1]);
  const auto values = static_cast<int64_t>(hyper_of(config, 0, 1).size());
  const TensorId hyper = graph.input(names::kHyper, {graph::DType::f64, {values}}, true);
  const ParamGroups groups(config.groups, graph, params);
  for (size_t i = 0; i < params.size(); ++i) {
    const graph::Tensor& param = graph.tensor(params[i]);
    const ParamGroup& group = groups.of(param.name);
    const double decay = is_decayed(param) ? config.weight_decay : 0;
    const Update update(graph, config,
                        {.param = params[i],
                         .gradient = sums[i],
                         .coef = clip[0],
                         .hyper = hyper,
                         .lr_scale = group.lr_scale,
                         .weight_decay = group.weight_decay.value_or(decay)});
    optimizer_named(group.optimizer.empty() ? config.name : group.optimizer).update(update);
  }
}

void append_grad_outputs(Graph& graph) {
  for (const size_t grad : grads_by_name(graph)) {
    graph.outputs.push_back(sum_up(graph, grad));
  }
}

}  // namespace hocket::autodiff

// SPDX-License-Identifier: Apache-2.0
#include "check/reference.h"

#include "base/error.h"
#include "check/certificate.h"

namespace hocket::check {

using graph::Node;
using graph::Phase;
using graph::TensorKind;

Reference::Reference(const graph::Graph& graph, int32_t num_micro_batches)
    : graph_(&graph), num_micro_batches_(num_micro_batches), symbols_(graph.symbols) {
  // Forward and backward nodes run once per micro-batch, which overwrites `value_`. Values that
  // outlive the micro-batch are kept: `total_` adds up gradients and losses, which the optimizer or
  // the host reads; `each_` keeps every loss and output. Then the optimizer nodes run on the
  // totals.
  prepare();
  terms.reserve(graph.nodes.size() * static_cast<size_t>(num_micro_batches));
  for (size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (graph.tensors[tensor].kind == TensorKind::param ||
        graph.tensors[tensor].kind == TensorKind::state) {
      value_[tensor] = terms.tensor(static_cast<int32_t>(tensor), type_of[tensor]);
    }
  }
  for (int32_t mb = 0; mb < num_micro_batches; ++mb) {
    for (const Step& step : steps_) {
      if (!step.optimizer) {
        run_node(step, mb);
      }
    }
    for (size_t tensor = 0; tensor < value_.size(); ++tensor) {
      const ExprId value = value_[tensor];
      if (wanted_[tensor] && value >= 0) {
        total_[tensor] = mb == 0 ? value : terms.sum(total_[tensor], value);
      }
      if (wants_each_[tensor]) {
        each_[each_index_[tensor]].push_back(value);
      }
    }
  }
  for (const Step& step : steps_) {
    if (step.optimizer) {
      run_node(step, -1);
    }
  }
}

void Reference::prepare() {
  const graph::Graph& graph = *graph_;
  const size_t num_tensors = graph.tensors.size();
  value_.assign(num_tensors, kUnwritten);
  total_.assign(num_tensors, kUnwritten);
  each_index_.assign(num_tensors, -1);
  per_mb_.assign(num_tensors, false);
  wanted_.assign(num_tensors, false);
  updated_.assign(num_tensors, false);
  wants_each_.assign(num_tensors, false);
  for (size_t tensor = 0; tensor < num_tensors; ++tensor) {
    type_of.push_back(types.intern(graph.tensors[tensor].type));
    by_name_.emplace(graph.tensors[tensor].name, static_cast<int32_t>(tensor));
  }
  for (size_t node = 0; node < graph.nodes.size(); ++node) {
    steps_.push_back(step_of(static_cast<int32_t>(node)));
    note_tensors(steps_.back());
  }
  choose_results();
}

Reference::Step Reference::step_of(int32_t node_id) {
  // The last inputs of a node are the accumulators of its accumulated outputs, in the order of the
  // outputs. The op itself does not know them.
  const Node& node = graph_->nodes[node_id];
  Step step;
  step.node = node_id;
  step.optimizer = node.phase == Phase::optimizer;
  step.key = keys.intern(node.op, node.attrs);
  const ops::Op* op = keys[step.key].rules;
  if (!op) fail("check", "graph node {} has the unknown op '{}'", node_id, node.op);
  step.meaning = op->meaning;
  step.in = node.in;
  step.out = node.out;
  step.accumulators.assign(node.out.size(), -1);
  const size_t accumulators = node.accumulate.size();
  if (accumulators > node.in.size()) {
    fail("check", "graph node {} has {} inputs for {} accumulators", node_id, node.in.size(),
         accumulators);
  }
  size_t next = node.in.size() - accumulators;
  for (size_t output = 0; output < node.out.size(); ++output) {
    if (node.accumulate.contains(output)) {
      step.accumulators[output] = node.in[next++];
    }
  }
  step.in.resize(node.in.size() - accumulators);
  step.updates.assign(node.out.size(), -1);
  for (auto [in, out] : op->inplace) {
    const size_t from = static_cast<size_t>(in);
    const size_t to = static_cast<size_t>(out);
    if (from >= step.in.size() || to >= step.out.size()) continue;
    const TensorKind kind = graph_->tensor(step.in[from]).kind;
    if (kind == TensorKind::param || kind == TensorKind::state) {
      step.updates[to] = step.in[from];
    }
  }
  for (int32_t output : node.out) {
    step.out_types.push_back(type_of[output]);
    step.routed = step.routed || graph_->tensor(output).type.routed();
  }
  return step;
}

void Reference::note_tensors(const Step& step) {
  for (int32_t tensor : step.updates) {
    if (tensor >= 0) {
      updated_[tensor] = true;
    }
  }
  for (int32_t output : step.out) {
    per_mb_[output] = !step.optimizer;
  }
  if (!step.optimizer) return;
  for (int32_t input : graph_->nodes[step.node].in) {
    if (per_mb_[input]) {
      wanted_[input] = true;
    }
  }
}

void Reference::choose_results() {
  summed_.assign(graph_->tensors.size(), false);
  for (int32_t loss : graph_->losses) {
    summed_[loss] = true;
  }
  for (const graph::ParamGrad& grad : graph_->grads) {
    for (int32_t contribution : grad.contributions) {
      summed_[contribution] = true;
    }
  }
  for (const auto* list : {&graph_->losses, &graph_->outputs}) {
    for (int32_t tensor : *list) {
      const size_t i = static_cast<size_t>(tensor);
      if (!per_mb_[i] || wants_each_[i]) continue;
      wanted_[i] = true;
      wants_each_[i] = true;
      each_index_[i] = static_cast<int32_t>(each_.size());
      each_.emplace_back();
    }
  }
}

ExprId Reference::read(int32_t tensor, const Step& step, int32_t micro_batch) {
  const size_t index = static_cast<size_t>(tensor);
  const graph::Tensor& info = graph_->tensors[index];
  if (info.kind == TensorKind::input) {
    return terms.input(tensor, info.per_step ? -1 : micro_batch, type_of[index]);
  }
  ExprId expr = value_[index];
  if (step.optimizer && per_mb_[index]) {
    expr = total_[index];
  }
  if (expr < 0) {
    fail("check", "graph node {} ({}) reads '{}' before it is written", step.node,
         graph_->nodes[step.node].op, info.name);
  }
  return expr;
}

/// Returns the routing that placed the rows of a node's outputs: that of a routed input, else a
/// routing op that made an input (`scratch_`). Contributions to a routed sum share one routing, so
/// the first decides.
AppId Reference::route_of_inputs() const {
  AppId route = -1;
  for (ExprId expr : scratch_) {
    if (terms[expr].kind == Expr::Kind::sum && expr != kZero) {
      expr = terms.terms_of(expr)[0];
    }
    if (terms[expr].kind != Expr::Kind::output) continue;
    const Application& from = terms.app(terms[expr].a);
    if (from.route >= 0 && types[terms[expr].type].routed()) {
      route = from.route;
    }
    if (route < 0 && keys[from.key].rules->routing.counts >= 0) {
      route = terms[expr].a;
    }
  }
  return route;
}

void Reference::run_node(const Step& step, int32_t micro_batch) {
  // Sums, copies and zeros make no application: a gradient summed by one op or by three is one
  // term. Equal applications (same op, same inputs) are one term, with node and micro-batch of the
  // first.
  scratch_.clear();
  for (int32_t input : step.in) {
    scratch_.push_back(read(input, step, micro_batch));
  }
  ExprId single = kZero;
  AppId app = -1;
  switch (step.meaning) {
    case Meaning::empty:
      break;
    case Meaning::identity:
      single = scratch_[0];
      break;
    case Meaning::sum:
      for (ExprId expr : scratch_) {
        single = terms.sum(single, expr);
      }
      break;
    case Meaning::merge_softmax:
    case Meaning::merge_max:
    case Meaning::regroup:
    case Meaning::uninterpreted: {
      Application where;
      where.node = step.node;
      where.micro_batch = micro_batch;
      where.route = step.routed ? route_of_inputs() : -1;
      app = apply(step.key, scratch_, step.out_types, where);
      break;
    }
  }
  for (size_t output = 0; output < step.out.size(); ++output) {
    ExprId expr = app >= 0 ? terms.output(app, static_cast<int32_t>(output)) : single;
    if (step.accumulators[output] >= 0) {
      expr = terms.sum(read(step.accumulators[output], step, micro_batch), expr);
    }
    value_[step.out[output]] = expr;
    if (step.updates[output] >= 0) {
      value_[step.updates[output]] = expr;
    }
  }
}

const Hash128& Reference::hash() {
  if (!hash_) {
    hash_ = reference_hash(*graph_, num_micro_batches_);
  }
  return *hash_;
}

int32_t Reference::find(std::string_view name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? -1 : it->second;
}

ExprId Reference::value(int32_t tensor, int32_t micro_batch) const {
  const size_t index = static_cast<size_t>(tensor);
  if (!per_mb_[index]) return micro_batch < 0 ? value_[index] : kUnwritten;
  if (micro_batch < 0) return summed_[index] ? total_[index] : kUnwritten;
  if (each_index_[index] < 0 || micro_batch >= num_micro_batches_) return kUnwritten;
  return each_[each_index_[index]][micro_batch];
}

}  // namespace hocket::check

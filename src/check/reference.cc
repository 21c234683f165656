// SPDX-License-Identifier: Apache-2.0
#include "check/reference.h"

#include "base/error.h"
#include "check/certificate.h"

namespace hocket::check {

using graph::Node;
using graph::Phase;
using graph::TensorKind;

Reference::Reference(const graph::Graph& graph, int32_t num_micro_batches)
    : graph_(&graph), num_micro_batches_(num_micro_batches) {
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
    for (size_t t = 0; t < value_.size(); ++t) {
      if (wanted_[t] && value_[t] >= 0) {
        total_[t] = mb == 0 ? value_[t] : terms.sum(total_[t], value_[t]);
      }
      if (wants_each_[t]) {
        each_[each_index_[t]].push_back(value_[t]);
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
  const graph::Graph& g = *graph_;
  const size_t n = g.tensors.size();
  value_.assign(n, kUnwritten);
  total_.assign(n, kUnwritten);
  each_index_.assign(n, -1);
  per_mb_.assign(n, false);
  wanted_.assign(n, false);
  updated_.assign(n, false);
  wants_each_.assign(n, false);
  for (size_t t = 0; t < n; ++t) {
    type_of.push_back(types.intern(g.tensors[t].type));
    by_name_.emplace(g.tensors[t].name, static_cast<int32_t>(t));
  }
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& node = g.nodes[i];
    Step step;
    step.node = static_cast<int32_t>(i);
    step.optimizer = node.phase == Phase::optimizer;
    step.key = keys.intern(node.op, node.attrs);
    const ops::Op* op = keys[step.key].rules;
    if (!op) fail("check", "graph node {} has the unknown op '{}'", i, node.op);
    step.meaning = op->meaning;
    step.in = node.in;
    step.out = node.out;
    step.accumulators.assign(node.out.size(), -1);
    const size_t accumulators = node.accumulate.size();
    if (accumulators > node.in.size()) {
      fail("check", "graph node {} has {} inputs for {} accumulators", i, node.in.size(),
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
      const size_t a = static_cast<size_t>(in), b = static_cast<size_t>(out);
      if (a >= step.in.size() || b >= step.out.size()) continue;
      const TensorKind kind = g.tensor(step.in[a]).kind;
      if (kind == TensorKind::param || kind == TensorKind::state) {
        step.updates[b] = step.in[a];
        updated_[step.in[a]] = true;
      }
    }
    for (int32_t output : node.out) {
      step.out_types.push_back(type_of[output]);
      per_mb_[output] = !step.optimizer;
      step.routed = step.routed || g.tensor(output).type.routed();
    }
    if (step.optimizer) {
      for (int32_t input : node.in) {
        if (per_mb_[input]) {
          wanted_[input] = true;
        }
      }
    }
    steps_.push_back(std::move(step));
  }
  summed_.assign(n, false);
  for (int32_t loss : g.losses) {
    summed_[loss] = true;
  }
  for (const graph::ParamGrad& grad : g.grads) {
    for (int32_t t : grad.contributions) {
      summed_[t] = true;
    }
  }
  for (const auto* list : {&g.losses, &g.outputs}) {
    for (int32_t t : *list) {
      const size_t i = static_cast<size_t>(t);
      if (!per_mb_[i] || wants_each_[i]) continue;
      wants_each_[i] = wanted_[i] = true;
      each_index_[i] = static_cast<int32_t>(each_.size());
      each_.emplace_back();
    }
  }
}

ExprId Reference::read(int32_t tensor, const Step& step, int32_t micro_batch) {
  const size_t t = static_cast<size_t>(tensor);
  const graph::Tensor& info = graph_->tensors[t];
  if (info.kind == TensorKind::input) {
    return terms.input(tensor, info.per_step ? -1 : micro_batch, type_of[t]);
  }
  ExprId expr = value_[t];
  if (step.optimizer && per_mb_[t]) {
    expr = total_[t];  // of all micro-batches
  }
  if (expr < 0) {
    fail("check", "graph node {} ({}) reads '{}' before it is written", step.node,
         graph_->nodes[step.node].op, info.name);
  }
  return expr;
}

void Reference::run_node(const Step& step, int32_t micro_batch) {
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
    case Meaning::application: {
      bool made = false;
      app = terms.apply(step.key, scratch_, step.out_types, &made);
      if (!made) break;
      AppId route = -1;
      if (step.routed) {
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
      }
      Application& application = terms.app(app);
      application.node = step.node;
      application.micro_batch = micro_batch;
      application.route = route;
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
  const size_t t = static_cast<size_t>(tensor);
  if (!per_mb_[t]) return micro_batch < 0 ? value_[t] : kUnwritten;
  if (micro_batch < 0) return summed_[t] ? total_[t] : kUnwritten;
  if (each_index_[t] < 0 || micro_batch >= num_micro_batches_) return kUnwritten;
  return each_[each_index_[t]][micro_batch];
}

}  // namespace hocket::check

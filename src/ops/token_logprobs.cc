// SPDX-License-Identifier: Apache-2.0
// token_logprobs: log-probability of each target and entropy of its distribution, the LM head
// included. Losses of preference tuning and reinforcement learning are made of them. Logits are
// formed chunk by chunk, forward and again backward: tokens x vocabulary logits never exist. By
// definition it is the product and the steps of vocabulary_loss.cc, which can run on parts of the
// vocabulary. With attribute `softcap` logits are cap * tanh(logit / cap), as by op softcap; with
// attribute `temperature` they are then multiplied by its inverse, as by op scale, and have the
// bits of op sample's. An ignored target (-100) has log-probability 0 and entropy 0. Attribute
// `metrics` adds two outputs without a gradient: the mean of a token's logits, and 1 where another
// token than the target is the most likely one (op token_misses).
#include "ops/rules.h"

namespace hocket::ops::token_logprobs {
namespace {

/// Returns whether W has no gradient.
bool is_frozen(const Attrs& attrs) { return attrs.i_or("frozen", 0) != 0; }
/// Returns whether the means of logits and the misses are outputs.
bool with_metrics(const Attrs& attrs) { return attrs.i_or("metrics", 0) != 0; }

void want_head(std::string_view op, const Attrs& attrs, Types in) {
  want_lm_head(op, attrs, in);
  if (!attrs.has("temperature")) return;
  if (const double temperature = attrs.f("temperature");
      !(temperature > 0 && std::isfinite(temperature))) {
    fail(op, "temperature is {}; expected a positive number", temperature);
  }
}

TensorType per_token(Types in) { return {DType::f64, {in[0].dims[0]}}; }

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("token_logprobs", in, 3);
  want_head("token_logprobs", attrs, in);
  return std::vector<TensorType>(with_metrics(attrs) ? 5 : 3, per_token(in));
}

/// Inputs: h, W, targets, lse, gradient of the log-probabilities; then, if entropies have a
/// gradient, the entropies and that.
std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "token_logprobs_bwd";
  if (in.size() != 5 && in.size() != 7) fail(kOp, "got {} inputs; expected 5 or 7", in.size());
  want_head(kOp, attrs, in);
  for (size_t i = 3; i < in.size(); ++i) {
    want_same(kOp, in[i], per_token(in));
  }
  if (is_frozen(attrs)) return {in[0]};
  return {in[0], {grad_dtype(attrs, in[1].dtype), in[1].dims}};
}

Work work(const Call& call) { return {head_flops(call.in), total_bytes(call.in, call.out)}; }
/// The logits, dh, and dW where W is trained.
Work work_bwd(const Call& call) {
  const double products = is_frozen(call.attrs) ? 2 : 3;
  return {products * head_flops(call.in), total_bytes(call.in, call.out)};
}
double model_flops(const Attrs&, Types in, double) { return head_flops(in); }

int64_t workspace(const Call& call) { return head_workspace(call, false); }
int64_t workspace_bwd(const Call& call) { return head_workspace(call, true); }

void grad(GradContext& context) {
  const auto& node = context.node();
  TensorId of_logprobs = context.grad_out(0);
  const TensorId of_entropies = context.grad_out(1);
  if (of_logprobs == graph::kNone) {
    of_logprobs = context.emit("scale", {{"factor", 0.0}}, {of_entropies})[0];
  }
  std::vector<TensorId> in{node.in[0], node.in[1], node.in[2], node.out[2], of_logprobs};
  if (of_entropies != graph::kNone) {
    in.insert(in.end(), {node.out[1], of_entropies});
  }
  constexpr const char* kBackward = "token_logprobs_bwd";
  Attrs attrs = node.attrs;
  attrs.erase("metrics");
  TensorId dh;
  if (context.needs(1)) {
    dh = context.emit_grad(kBackward, attrs, std::move(in), 1, 1)[0];
  } else {
    attrs.set("frozen", int64_t{1});
    dh = context.emit(kBackward, attrs, std::move(in))[0];
  }
  if (context.needs(0)) {
    context.add_grad(0, dh);
  }
}

/// The logits after cap and temperature and, before both, the product.
struct Logits {
  int made, product;
  Attrs cap, temper;  ///< of ops softcap and scale; empty: none
};
Logits define_logits(Definition& graph, const Attrs& attrs, std::span<const int> in) {
  Logits made;
  made.product = graph.apply("linear", {}, {in[0], in[1]})[0];
  made.made = made.product;
  if (attrs.has("softcap")) {
    made.cap.set("cap", attrs.f("softcap"));
    made.made = graph.apply("softcap", made.cap, {made.product})[0];
  }
  if (attrs.has("temperature")) {
    made.temper.set("factor", 1 / attrs.f("temperature"));
    made.made = graph.apply("scale", made.temper, {made.made})[0];
  }
  return made;
}

std::vector<int> define(Definition& graph, const Attrs& attrs, std::span<const int> in) {
  const Attrs vocabulary{{"vocab", graph.type(in[1]).dims[0]}};
  const int z = define_logits(graph, attrs, in).made;
  const int lse = graph.apply("lse", {}, {z})[0];
  const int logit = graph.apply("pick", vocabulary, {z, in[2]})[0];
  const std::vector<int> kept = graph.apply("token_logprob", {}, {logit, lse, in[2]});
  std::vector<int> made{kept[0], graph.apply("token_entropy", {}, {z, in[2], lse})[0], kept[1]};
  if (with_metrics(attrs)) {
    made.push_back(graph.apply("logit_mean", vocabulary, {z, in[2]})[0]);
    made.push_back(graph.apply("token_misses", vocabulary, {z, logit, in[2]})[0]);
  }
  return made;
}

std::vector<int> define_bwd(Definition& graph, const Attrs& attrs, std::span<const int> in) {
  const Attrs vocabulary{{"vocab", graph.type(in[1]).dims[0]}};
  const Logits z = define_logits(graph, attrs, in);
  std::vector<int> of_dz{z.made};
  of_dz.insert(of_dz.end(), in.begin() + 2, in.end());
  int dz = graph.apply("token_dlogits", vocabulary, of_dz)[0];
  if (!z.temper.empty()) {
    dz = graph.apply("scale", z.temper, {dz})[0];
  }
  if (!z.cap.empty()) {
    dz = graph.apply("softcap_bwd", z.cap, {dz, z.product})[0];
  }
  const int dh = graph.apply("linear_dx", {}, {dz, in[1]})[0];
  if (is_frozen(attrs)) return {dh};
  Attrs of_dw;
  if (attrs.has("short_gradient")) {
    of_dw.set("short_gradient", attrs.i("short_gradient"));
  }
  return {dh, graph.apply("linear_dw", of_dw, {dz, in[0]})[0]};
}

/// Samples of h, W, targets; `gradients`: with lse and the gradient of 0, 1 or 2 outputs.
std::vector<Sample> samples_with(int gradients) {
  std::vector<Sample> list;
  for (auto [t, d, v] : {std::tuple{7, 5, 11}, {12, 4, 16}, {4, 1, 2}}) {
    const TensorType token{DType::f64, {t}};
    Sample sample{"T=" + std::to_string(t) + " V=" + std::to_string(v),
                  {},
                  {{DType::f64, {t, d}}, {DType::f64, {v, d}}, {DType::i32, {t}}},
                  {{}, {}, {.kind = Fill::Kind::targets, .hi = static_cast<double>(v)}},
                  {}};
    const Fill made{.kind = Fill::Kind::from_op};
    if (gradients == 1) {
      sample.types.insert(sample.types.end(), {token, token});
      sample.fills.insert(sample.fills.end(), {made, Fill{}});
      sample.chain = {{"token_logprobs", {}, {0, 1, 2}, {-1, -1, 3}}};
    } else if (gradients == 2) {
      sample.types.insert(sample.types.end(), {token, token, token, token});
      sample.fills.insert(sample.fills.end(), {made, Fill{}, made, Fill{}});
      sample.chain = {{"token_logprobs", {}, {0, 1, 2}, {-1, 5, 3}}};
    }
    list.push_back(std::move(sample));
  }
  const auto add = [&](const char* name, const Attrs& attrs) {
    list.push_back(list[1]);
    list.back().name += name;
    list.back().attrs = attrs;
    if (gradients > 0) {
      list.back().chain[0].attrs = attrs;
    }
  };
  add(", softcap", {{"softcap", 1.5}});
  add(", temperature", {{"temperature", 0.7}});
  add(", softcap, temperature", {{"softcap", 1.5}, {"temperature", 1.6}});
  if (gradients > 0) {
    list.push_back(with_short_gradient(list[1]));
    return list;
  }
  const int64_t metrics = 1;
  add(", metrics", {{"metrics", metrics}});
  add(", metrics, softcap, temperature",
      {{"metrics", metrics}, {"softcap", 1.5}, {"temperature", 1.6}});
  return list;
}
std::vector<Sample> samples_bwd() {
  std::vector<Sample> list = samples_with(1);
  for (Sample& sample : samples_with(2)) {
    sample.name += ", entropies";
    list.push_back(std::move(sample));
  }
  for (const size_t i : {size_t{1}, list.size() / 2 + 1}) {  // of 12 tokens
    list.push_back(list[i]);
    list.back().name += ", W frozen";
    list.back().attrs.set("frozen", int64_t{1});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "token_logprobs",
                 .doc = "log p[t,targets[t]], -sum_v p log p and log sum_v e^z of p = softmax(z), "
                        "z = h[T,D] W^T, logits below `softcap` and over `temperature` if there "
                        "are these; with `metrics` also the mean of z over v and token_misses; 0 "
                        "where the target is -100",
                 .infer = infer,
                 .layout = {"td,vd,t->t,t,t|td,vd,t->t,t,t,t,t", "t"},
                 .work = work,
                 .grad = grad,
                 .samples = [] { return samples_with(0); },
                 .fd_inputs = {0, 1},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::loss,
                 .model_flops = model_flops,
                 .define = define,
                 .defined = Defined::expands});
  ops.push_back({.name = "token_logprobs_bwd",
                 .doc = "dh[T,D] and, unless W is `frozen`, dW[V,D] of token_logprobs, from the "
                        "gradients of its "
                        "log-probabilities and, optionally, entropies; logits are formed again",
                 .infer = infer_bwd,
                 .layout = {"td,vd,t,t,t->td,vd|td,vd,t,t,t,t,t->td,vd|"
                            "td,vd,t,t,t->td|td,vd,t,t,t,t,t->td",
                            "t"},
                 .work = work_bwd,
                 .samples = samples_bwd,
                 .accumulates = {1},
                 .workspace = workspace_bwd,
                 .cost_class = CostClass::matmul,
                 .family = Family::loss,
                 .define = define_bwd,
                 .defined = Defined::expands});
}

}  // namespace hocket::ops::token_logprobs

// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy: the LM head fused with its loss. One task forms the loss, dh and dW over
// chunks of tokens: tokens x vocabulary logits never exist, and no GEMM is done twice. The loss is
// a sum scaled by 1 / (targets of the whole step), known before the forward pass. By definition it
// is the product and the steps of vocabulary_loss.cc, which can run on parts of the vocabulary.
// Attribute `frozen` leaves out dW. With attribute `softcap` logits are cap * tanh(logit / cap), as
// by op softcap. Attribute `metrics` adds two outputs per token, last and without a gradient: the
// entropy, and 1 where another token than the target is the most likely one (op token_misses).
#include "ops/rules.h"

namespace hocket::ops::linear_cross_entropy {
namespace {

bool is_frozen(const Attrs& attrs) { return attrs.i_or("frozen", 0) != 0; }
bool with_metrics(const Attrs& attrs) { return attrs.i_or("metrics", 0) != 0; }

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "linear_cross_entropy";
  want_inputs(kOp, in, 4);
  want_lm_head(kOp, attrs, in);
  want_scalar(kOp, in[3], DType::f64);
  std::vector<TensorType> out{{DType::f64, {1}}};
  const int64_t grad = attrs.i("grad");
  if (grad != 0 && grad != 1) fail(kOp, "grad is {}; expected 0 or 1", grad);
  if (grad == 1) {
    out.push_back(in[0]);
  }
  if (grad == 1 && !is_frozen(attrs)) {
    out.push_back({grad_dtype(attrs, in[1].dtype), in[1].dims});
  }
  if (with_metrics(attrs)) {
    out.resize(out.size() + 2, {DType::f64, {in[0].dims[0]}});
  }
  return out;
}

/// Work of the logits' product. The gradient adds two products of the same size, dh and dW; one
/// where W is frozen.
Work work(const Call& call) {
  const double products = call.attrs.i("grad") == 0 ? 1 : is_frozen(call.attrs) ? 2 : 3;
  return {products * head_flops(call.in), total_bytes(call.in, call.out)};
}

int64_t workspace(const Call& call) { return head_workspace(call, call.attrs.i("grad") != 0); }

double model_flops(const Attrs&, Types in, double) { return head_flops(in); }

void grad(GradContext& context) {
  if (context.node().attrs.i("grad") == 0) {
    fail("linear_cross_entropy", "grad=0 has no gradient; expected grad=1");
  }
  context.add_grad(0, context.node().out[1]);
  if (!is_frozen(context.node().attrs)) {
    context.add_grad(1, context.node().out[2]);
  } else if (context.needs(1)) {
    fail("linear_cross_entropy", "frozen=1 has no gradient of W; expected a W that is not trained");
  }
}

std::vector<int> define(Definition& graph, const Attrs& attrs, std::span<const int> in) {
  const int hidden = in[0], weight = in[1], targets = in[2], scale = in[3];
  const Attrs vocabulary{{"vocab", graph.type(weight).dims[0]}};
  const int product = graph.apply("linear", {}, {hidden, weight})[0];
  Attrs cap;
  if (attrs.has("softcap")) {
    cap.set("cap", attrs.f("softcap"));
  }
  const int z = cap.empty() ? product : graph.apply("softcap", cap, {product})[0];
  const int lse = graph.apply("lse", {}, {z})[0];
  const int logit = graph.apply("pick", vocabulary, {z, targets})[0];
  const int loss = graph.apply("nll", {}, {logit, lse, targets, scale})[0];
  std::vector<int> metrics;
  if (with_metrics(attrs)) {
    metrics = {graph.apply("token_entropy", {}, {z, targets, lse})[0],
               graph.apply("token_misses", vocabulary, {z, logit, targets})[0]};
  }
  const auto before_metrics = [&](std::vector<int> made) {
    made.insert(made.end(), metrics.begin(), metrics.end());
    return made;
  };
  if (attrs.i("grad") == 0) return before_metrics({loss});
  int dz = graph.apply("dlogits", vocabulary, {z, targets, lse, scale})[0];
  if (!cap.empty()) {
    dz = graph.apply("softcap_bwd", cap, {dz, product})[0];
  }
  const int dh = graph.apply("linear_dx", {}, {dz, weight})[0];
  if (is_frozen(attrs)) return before_metrics({loss, dh});
  Attrs of_dw;
  if (attrs.has("short_gradient")) {
    of_dw.set("short_gradient", attrs.i("short_gradient"));
  }
  return before_metrics({loss, dh, graph.apply("linear_dw", of_dw, {dz, hidden})[0]});
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (auto [t, d, v] : {std::tuple{7, 5, 11}, {12, 4, 16}, {1, 1, 2}}) {
    list.push_back(
        {"T=" + std::to_string(t) + " V=" + std::to_string(v),
         {{"grad", int64_t{1}}},
         {{DType::f64, {t, d}}, {DType::f64, {v, d}}, {DType::i32, {t}}, {DType::f64, {1}}},
         {{},
          {},
          {.kind = Fill::Kind::targets, .hi = static_cast<double>(v)},
          {.kind = Fill::Kind::constant, .lo = 0.125}},
         {}});
  }
  list.push_back(list[1]);
  list.back().name += ", loss only";
  list.back().attrs = {{"grad", int64_t{0}}};
  list.push_back(with_short_gradient(list[1]));
  list.push_back(list[1]);
  list.back().name += ", W frozen";
  list.back().attrs.set("frozen", int64_t{1});
  for (int64_t grad : {1, 0}) {
    list.push_back(list[1]);
    list.back().name += grad ? ", softcap" : ", softcap, loss only";
    list.back().attrs = {{"grad", grad}, {"softcap", 1.5}};
  }
  const size_t without = list.size();
  for (size_t i = 0; i < without; ++i) {
    list.push_back(list[i]);
    list.back().name += ", metrics";
    list.back().attrs.set("metrics", int64_t{1});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "linear_cross_entropy",
                 .doc = "loss = scale * sum_t nll(h[t] W^T, targets[t]), -100 ignored, logits "
                        "below `softcap` if there is one; with grad=1 "
                        "also dh[T,D] and, unless `frozen`, dW[V,D] of that loss; with `metrics` "
                        "also token_entropy and token_misses",
                 .infer = infer,
                 .layout = {"td,vd,t,.->.,td,vd|td,vd,t,.->.,td|td,vd,t,.->.|"
                            "td,vd,t,.->.,td,vd,t,t|td,vd,t,.->.,td,t,t|td,vd,t,.->.,t,t",
                            "t"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .accumulates = {0, 2},
                 .fd_inputs = {0, 1},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::loss,
                 .model_flops = model_flops,
                 .define = define,
                 .defined = Defined::expands});
}

}  // namespace hocket::ops::linear_cross_entropy

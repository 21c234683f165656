// SPDX-License-Identifier: Apache-2.0
// router: softmax over experts, top-k (ties to the lowest index) or the choices that it is given,
// weights optionally renormalised to sum to one; psum feeds the balance loss. Choices are given
// where those of another run are to be taken again (routing replay: Ma et al., arXiv 2510.11370).
#include "ops/rules.h"

namespace hocket::ops::router {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  const bool given = attrs.i_or("given", 0) != 0, padded = attrs.i_or("padded", 0) != 0;
  want_inputs("router", in, 1 + (given ? 1 : 0) + (padded ? 1 : 0));
  want_rank("router", in[0], 2);
  want_float("router", in[0]);
  const Dim t = in[0].dims[0];
  const Dim e = in[0].dims[1];
  const int64_t k = attrs.i("top_k");
  attrs.i("norm");
  if (k < 1 || k > e) fail("router", "top_k is {}; expected 1 to {}", k, e);
  if (given) {
    want_same("router", in[1], {DType::i32, {t, k}});
  }
  if (padded) {
    want_same("router", in.back(), {DType::i32, {t}});
  }
  return {{in[0].dtype, {t, k}}, {DType::i32, {t, k}}, in[0], {sum_dtype(in[0].dtype), {e}}};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_inputs("router_bwd", in, attrs.i("has_dpsum") ? 4 : 3);
  want_rank("router_bwd", in[0], 2);
  want_rank("router_bwd", in[2], 2);
  want_float("router_bwd", in[2]);
  const TensorType& dw = in[0];
  const TensorType& probs = in[2];
  want_same("router_bwd", dw, {probs.dtype, {probs.dims[0], attrs.i("top_k")}});
  want_same("router_bwd", in[1], {DType::i32, dw.dims});
  if (in.size() == 4) {
    want_same("router_bwd", in[3], {sum_dtype(probs.dtype), {probs.dims[1]}});
  }
  return {in[2]};
}

Work work(const Call& call) { return memory_bound(call, 5); }

/// A row of psum per block of tokens.
int64_t workspace(const Call& call) {
  const TensorType& logits = call.in[0];
  const int64_t tokens = logits.dims[0];
  const int64_t block = norm_block_rows(tokens);
  return ceil_div(tokens, block) * logits.dims[1] * element(logits);
}

void grad(GradContext& context) {
  const auto& node = context.node();
  Attrs attrs = node.attrs;
  attrs.erase("given");
  attrs.erase("padded");
  TensorId dpsum = context.grad_out(3);
  attrs.set("has_dpsum", int64_t{dpsum != graph::kNone});
  if (context.grad_out(0) == graph::kNone) fail("router", "the weights have no gradient");
  std::vector<TensorId> in{context.grad_out(0), node.out[1], node.out[2]};
  if (dpsum != graph::kNone) {
    in.push_back(dpsum);
  }
  context.add_grad(0, context.emit("router_bwd", attrs, in)[0]);
}

Attrs attrs_of(int64_t k, int64_t norm) { return {{"top_k", k}, {"norm", norm}}; }

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (int64_t norm : {0, 1}) {
    for (int64_t k : {1, 2, 4}) {
      list.push_back({"top-" + std::to_string(k) + (norm ? " normalised" : ""),
                      attrs_of(k, norm),
                      {{DType::f64, {6, 4}}},
                      {{}},
                      {}});
    }
    Attrs given = attrs_of(2, norm);
    given.set("given", int64_t{1});
    list.push_back({norm ? "given, normalised" : "given",
                    given,
                    {{DType::f64, {6, 4}}, {DType::i32, {6, 2}}},
                    {{}, {.kind = Fill::Kind::routes, .hi = 3}},
                    {}});
    Attrs padded = attrs_of(2, norm);
    padded.set("padded", int64_t{1});
    list.push_back({norm ? "padded, normalised" : "padded",
                    padded,
                    {{DType::f64, {6, 4}}, {DType::i32, {6}}},
                    {{}, {.kind = Fill::Kind::halves}},
                    {}});
    padded.set("given", int64_t{1});
    list.push_back({norm ? "given, padded, normalised" : "given, padded",
                    padded,
                    {{DType::f64, {6, 4}}, {DType::i32, {6, 2}}, {DType::i32, {6}}},
                    {{}, {.kind = Fill::Kind::routes, .hi = 3}, {.kind = Fill::Kind::halves}},
                    {}});
  }
  return list;
}
/// Samples with and without a gradient of psum, the fourth input.
std::vector<Sample> samples_bwd() {
  std::vector<Sample> list;
  for (int64_t norm : {0, 1}) {
    Attrs attrs = attrs_of(2, norm);
    attrs.set("has_dpsum", int64_t{1});
    Sample sample;
    sample.name = norm ? "normalised" : "plain";
    sample.attrs = attrs;
    sample.types = {{DType::f64, {6, 2}},
                    {DType::i32, {6, 2}},
                    {DType::f64, {6, 4}},
                    {DType::f64, {4}},
                    {DType::f64, {6, 4}}};
    sample.fills = {{}, {.kind = Fill::Kind::from_op}, {.kind = Fill::Kind::from_op}, {}, {}};
    sample.chain = {{"router", attrs_of(2, norm), {4}, {-1, 1, 2, -1}}};
    sample.num_inputs = 4;
    list.push_back(sample);
    sample.name += ", no balance loss";
    sample.attrs.set("has_dpsum", int64_t{0});
    sample.types.erase(sample.types.begin() + 3);
    sample.fills.erase(sample.fills.begin() + 3);
    sample.chain[0].in = {3};
    sample.num_inputs = 3;
    list.push_back(sample);
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = "router",
       .doc = "probs = softmax(logits); ids[T,K] = top-k, or as given; w = probs[ids] (/ "
              "their sum if norm); psum[E] = sum_t probs; with `padded`, a token whose "
              "last input is 0 has ids -1, weights 0 and no part in psum",
       .infer = infer,
       .layout = {"te->tk,tk,te,e|te,tk->tk,tk,te,e|te,t->tk,tk,te,e|te,tk,t->tk,tk,te,e", "t"},
       .work = work,
       .grad = grad,
       .samples = samples,
       .workspace = workspace,
       .family = Family::routing});
  ops.push_back({.name = "router_bwd",
                 .doc = "dlogits from dw[T,K] and dpsum[E] (added to every row of dprobs)",
                 .infer = infer_bwd,
                 .layout = {"tk,tk,te->te|tk,tk,te,e->te", "t"},
                 .work = work,
                 .samples = samples_bwd,
                 .family = Family::routing});
}

}  // namespace hocket::ops::router

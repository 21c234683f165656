// SPDX-License-Identifier: Apache-2.0
// attention: causal grouped-query attention over packed documents. A document begins where
// pos[t] == 0 and never sees another one; the cost uses whole sequences as documents unless the
// caller knows better. attention_cached is the same for new tokens against a KV cache.
#include "ops/rules.h"

namespace hocket::ops {
namespace {

void want_heads(std::string_view op, Types in) {
  for (int i = 0; i < 3; ++i) want_rank(op, in[static_cast<size_t>(i)], 3);
  want_float(op, in[0]);
  want_dtype(op, in[1], in[0].dtype);
  want_same(op, in[1], in[2]);
  want_equal(op, "k's tokens", in[1].dims[0], in[0].dims[0]);
  want_equal(op, "k's head dim", in[1].dims[2], in[0].dims[2]);
  if (in[1].dims[1] == 0 || in[0].dims[1] % in[1].dims[1] != 0)
    fail(op, "{} query heads over {} kv heads; expected a multiple", in[0].dims[1], in[1].dims[1]);
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("attention", in, 4);
  want_heads("attention", in);
  want_vector("attention", in[3], DType::i32, in[0].dims[0], "number of positions");
  attrs.f("scale");
  return {in[0], {in[0].dtype, {in[0].dims[0], in[0].dims[1]}}};
}

std::vector<TensorType> infer_bwd(const Attrs&, Types in) {
  want_inputs("attention_bwd", in, 7);
  want_heads("attention_bwd", in.subspan(1, 3));
  want_same("attention_bwd", in[0], in[1]);
  want_same("attention_bwd", in[4], in[1]);
  want_same("attention_bwd", in[5], {in[1].dtype, {in[1].dims[0], in[1].dims[1]}});
  want_vector("attention_bwd", in[6], DType::i32, in[1].dims[0], "number of positions");
  return {in[1], in[2], in[3]};
}

std::vector<TensorType> infer_cached(const Attrs&, Types in) {
  want_inputs("attention_cached", in, 6);
  want_heads("attention_cached", in);
  want_rank("attention_cached", in[3], 3);
  want_same("attention_cached", in[3], in[4]);
  want_equal("attention_cached", "kv heads of the cache", in[3].dims[1], in[1].dims[1]);
  want_equal("attention_cached", "head dim of the cache", in[3].dims[2], in[1].dims[2]);
  want_dtype("attention_cached", in[3], in[0].dtype);
  want_vector("attention_cached", in[5], DType::i32, in[0].dims[0], "number of positions");
  return {in[0], in[3], in[4]};
}

/// Average number of keys that a query attends to: half a document. `seq` is the sequence length.
double average_keys(const Attrs& a, double tokens) {
  return (static_cast<double>(a.i_or("seq", static_cast<int64_t>(tokens))) + 1) / 2;
}

Cost cost(const Attrs& a, Types in, Types out) {
  Cost c = memory_bound("attention", a, in, out, 0);
  double t = static_cast<double>(in[0].dims[0]);
  c.flops = 4 * average_keys(a, t) * static_cast<double>(in[0].numel());
  return c;
}
Cost cost_bwd(const Attrs& a, Types in, Types out) {
  Cost c = memory_bound("attention_bwd", a, in, out, 0);
  double t = static_cast<double>(in[1].dims[0]);
  c.flops = 10 * average_keys(a, t) * static_cast<double>(in[1].numel());
  return c;
}
Cost cost_cached(const Attrs& a, Types in, Types out) {
  Cost c = memory_bound("attention_cached", a, in, out, 0);
  c.flops = 2 * static_cast<double>(in[3].dims[0]) * static_cast<double>(in[0].numel());
  c.bytes = 2 * in[0].bytes() + in[3].bytes() + in[4].bytes();
  return c;
}

void grad(GradContext& g) {
  const auto& n = g.node();
  auto d = g.emit("attention_bwd", n.attrs,
                  {g.grad_out(0), n.in[0], n.in[1], n.in[2], n.out[0], n.out[1], n.in[3]});
  for (int i = 0; i < 3; ++i) g.add_grad(i, d[static_cast<size_t>(i)]);
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  struct Case {
    int64_t t, h, g, d;
  };
  for (Case c : {Case{12, 4, 2, 4}, Case{8, 2, 2, 3}, Case{7, 3, 1, 5}, Case{1, 1, 1, 2}}) {
    TensorType q{DType::f64, {c.t, c.h, c.d}}, k{DType::f64, {c.t, c.g, c.d}};
    list.push_back({to_string(q) + " " + to_string(k),
                    {{"scale", 0.5}},
                    {q, k, k, {DType::i32, {c.t}}},
                    {{}, {}, {}, {.kind = Fill::Kind::documents}},
                    {},
                    1e-5});
  }
  return list;
}
std::vector<Sample> samples_bwd() {
  TensorType q{DType::f64, {12, 4, 4}}, k{DType::f64, {12, 2, 4}}, lse{DType::f64, {12, 4}};
  Fill from{.kind = Fill::Kind::from_op};
  return {{"12 tokens, 4 over 2 heads",
           {{"scale", 0.5}},
           {q, q, k, k, q, lse, {DType::i32, {12}}},
           {{}, {}, {}, {}, from, from, {.kind = Fill::Kind::documents}},
           {{"attention", {{"scale", 0.5}}, {1, 2, 3, 6}, {4, 5}}}}};
}
std::vector<Sample> samples_cached() {
  TensorType q{DType::f64, {3, 4, 4}}, k{DType::f64, {3, 2, 4}}, cache{DType::f64, {9, 2, 4}};
  return {{"3 new tokens, cache of 9",
           {{"scale", 0.5}},
           {q, k, k, cache, cache, {DType::i32, {3}}},
           {{}, {}, {}, {}, {}, {.kind = Fill::Kind::documents}},
           {}}};
}

}  // namespace

void register_attention(std::vector<Op>& ops) {
  ops.push_back({.name = "attention",
                 .doc = "o = softmax(scale q k^T) v, causal inside documents; lse = log sum exp",
                 .infer = infer,
                 .layout = {"thd,thd,thd,t->thd,th", "th"},
                 .cost = cost,
                 .grad = grad,
                 .samples = samples});
  ops.push_back({.name = "attention_bwd",
                 .doc = "dq, dk, dv from do and the saved q, k, v, o, lse (FlashAttention-2, arXiv "
                        "2307.08691)",
                 .infer = infer_bwd,
                 .layout = {"thd,thd,thd,thd,thd,th,t->thd,thd,thd", "th", "1"},
                 .cost = cost_bwd,
                 .samples = samples_bwd});
  ops.push_back({.name = "attention_cached",
                 .doc = "writes k, v of n new tokens at slots pos, attends to slots 0..pos[i]",
                 .infer = infer_cached,
                 .layout = {"thd,thd,thd,shd,shd,t->thd,shd,shd", "h"},
                 .cost = cost_cached,
                 .samples = samples_cached,
                 .inplace = {{3, 1}, {4, 2}}});
}

}  // namespace hocket::ops

// SPDX-License-Identifier: Apache-2.0
// dropout: y = x / (1 - p) for kept elements, else 0 (Srivastava et al., JMLR 15, 2014). The mask
// follows from the seed, the stream (the dropout's number in the model) and the element's place in
// the training: its token's number and its column. So it is the same under every plan, in a
// recomputed pass, and in the gradient, which is the op itself on dy. Features may be two dims
// (heads x head dim); attribute `width` counts them all.
#include "ops/rules.h"

namespace hocket::ops::dropout {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("dropout", in, 2);
  want_float("dropout", in[0]);
  if (in[0].routed() || in[0].dims.size() < 2 || in[0].dims.size() > 3) {
    fail("dropout", "got {}; expected [T,D] or [T,H,d]", to_string(in[0]));
  }
  want_vector("dropout", in[1], DType::i64, in[0].dims[0], "number of tokens");
  if (const double p = attrs.f("p"); !(p >= 0 && p < 1)) {
    fail("dropout", "p is {}; expected 0 <= p < 1", p);
  }
  if (const int64_t width = attrs.i("width"); product(in[0].dims, 1) > width) {
    fail("dropout", "x has {} columns; expected at most width={}", product(in[0].dims, 1), width);
  }
  attrs.i("seed");
  attrs.i("stream");
  return {in[0]};
}

/// Ten rounds of Philox for four elements, some twelve operations each.
Work work(const Call& call) { return memory_bound(call, 30); }

void grad(GradContext& context) {
  const std::vector<TensorId> d =
      context.emit("dropout", context.node().attrs, {context.grad_out(0), context.node().in[1]});
  context.add_grad(0, d[0]);
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  struct Case {
    int64_t tokens, width;
    double p;
  };
  for (const Case& c : {Case{8, 6, 0.25}, Case{6, 8, 0.5}, Case{5, 3, 0.1}, Case{4, 4, 0}}) {
    const TensorType x{DType::f64, {c.tokens, c.width}};
    list.push_back({to_string(x) + " p=" + std::to_string(c.p).substr(0, 4),
                    {{"p", c.p}, {"seed", int64_t{7}}, {"stream", int64_t{3}}, {"width", c.width}},
                    {x, {DType::i64, {c.tokens}}},
                    {{}, {.kind = Fill::Kind::integers, .hi = 1e6}},
                    {}});
  }
  const TensorType heads{DType::f64, {6, 4, 3}};
  list.push_back(
      {to_string(heads),
       {{"p", 0.25}, {"seed", int64_t{7}}, {"stream", int64_t{3}}, {"width", int64_t{12}}},
       {heads, {DType::i64, {6}}},
       {{}, {.kind = Fill::Kind::integers, .hi = 1e6}},
       {}});
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = "dropout",
       .doc = "y[T,D..] = x / (1 - p) where the element (token[T], column of width) of the "
              "stream is kept, else 0",
       .infer = infer,
       .layout =
           {.notation = "td,t->td|thk,t->thk", .split = "tdh", .linear = "10", .positional = "dh"},
       .work = work,
       .grad = grad,
       .samples = samples,
       .may_overwrite = {{0, 0}}});
}

}  // namespace hocket::ops::dropout

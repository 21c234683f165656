// SPDX-License-Identifier: Apache-2.0
// embedding: x[t] = W[ids[t]]; its gradient adds dy[t] to row ids[t] of dW. `vocab` is the whole
// vocabulary; W may hold a run of its rows. A token outside has x[t] = 0, and adds nothing to that
// part of dW; so has a negative one with `padded` 1, which is an error otherwise.
#include "ops/rules.h"

namespace hocket::ops::embedding {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("embedding", in, 2);
  want_rank("embedding", in[0], 1);
  want_dtype("embedding", in[0], DType::i32);
  want_rank("embedding", in[1], 2);
  want_float("embedding", in[1]);
  if (const int64_t vocab = attrs.i("vocab"); in[1].dims[0] > vocab) {
    fail("embedding", "W has {} rows; expected at most vocab={}", in[1].dims[0], vocab);
  }
  return {{in[1].dtype, {in[0].dims[0], in[1].dims[1]}}};
}

std::vector<TensorType> infer_dw(const Attrs& attrs, Types in) {
  want_inputs("embedding_dw", in, 2);
  want_rank("embedding_dw", in[1], 2);
  want_float("embedding_dw", in[1]);
  want_vector("embedding_dw", in[0], DType::i32, in[1].dims[0], "number of tokens");
  return {{grad_dtype(attrs, in[1].dtype), {attrs.i("vocab"), in[1].dims[1]}}};
}

/// Work of a copy: only the rows that are looked up are read.
Work work(const Call& call) { return {0, call.in[0].bytes() + 2 * call.out[0].bytes()}; }
Work work_dw(const Call& call) {
  return {static_cast<double>(call.in[1].numel()), total_bytes(call.in, call.out)};
}

void grad(GradContext& context) {
  if (context.needs(1)) {
    context.emit_grad("embedding_dw", context.node().attrs,
                      {context.node().in[0], context.grad_out(0)}, 1);
  }
}

std::vector<Sample> samples() {
  return {{"9 of 5x4",
           {{"vocab", int64_t{5}}},
           {{DType::i32, {9}}, {DType::f64, {5, 4}}},
           {{.kind = Fill::Kind::integers, .hi = 4}, {}},
           {}},
          {"8 of 6x8",
           {{"vocab", int64_t{6}}},
           {{DType::i32, {8}}, {DType::f64, {6, 8}}},
           {{.kind = Fill::Kind::integers, .hi = 5}, {}},
           {}},
          {"8 of 6x4, padded",
           {{"vocab", int64_t{6}}, {"padded", int64_t{1}}},
           {{DType::i32, {8}}, {DType::f64, {6, 4}}},
           {{.kind = Fill::Kind::integers, .lo = -2, .hi = 5}, {}},
           {}}};
}
std::vector<Sample> samples_dw() {
  const Sample sample{"8 of 6x4",
                      {{"vocab", int64_t{6}}},
                      {{DType::i32, {8}}, {DType::f64, {8, 4}}},
                      {{.kind = Fill::Kind::integers, .hi = 5}, {}},
                      {}};
  return {sample, with_short_gradient(sample)};
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = "embedding",
       .doc = "x[T,D] = W[ids[T]], W[V,D]; 0 for ids of other rows than these",
       .infer = infer,
       .layout = {.notation = "t,vd->td", .split = "tvd", .linear = "01", .positional = "v"},
       .work = work,
       .grad = grad,
       .samples = samples,
       .family = Family::embedding,
       .takes_any_type = true});
  ops.push_back(
      {.name = "embedding_dw",
       .doc = "dW[V,D]: row v is the sum of dy[t] over ids[t] = v",
       .infer = infer_dw,
       .layout = {.notation = "t,td->vd", .split = "tvd", .linear = "01", .positional = "v"},
       .work = work_dw,
       .samples = samples_dw,
       .accumulates = {0},
       .family = Family::embedding});
}

}  // namespace hocket::ops::embedding

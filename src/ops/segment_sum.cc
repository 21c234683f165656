// SPDX-License-Identifier: Apache-2.0
// segment_sum: sums of a value per token over the segments of a batch, such as the log-probability
// of every answer (jax.ops.segment_sum). Tokens of a segment may lie anywhere; a negative segment
// is none. segment_gather is its gradient, and gives every token the value of its segment.
// token_sum is the sum over all tokens, times a scale, of a metric without a gradient.
#include "ops/rules.h"

namespace hocket::ops::segment_sum {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "segment_sum";
  want_inputs(kOp, in, 2);
  want_rank(kOp, in[0], 1);
  want_dtype(kOp, in[0], DType::f64);
  want_vector(kOp, in[1], DType::i32, in[0].dims[0], "number of segment numbers");
  const int64_t segments = attrs.i("segments");
  if (segments < 1) fail(kOp, "got {} segments; expected 1 or more", segments);
  return {{DType::f64, {segments}}};
}

std::vector<TensorType> infer_gather(const Attrs&, Types in) {
  constexpr const char* kOp = "segment_gather";
  want_inputs(kOp, in, 2);
  want_rank(kOp, in[0], 1);
  want_dtype(kOp, in[0], DType::f64);
  want_rank(kOp, in[1], 1);
  want_dtype(kOp, in[1], DType::i32);
  return {{DType::f64, in[1].dims}};
}

std::vector<TensorType> infer_token_sum(const Attrs&, Types in) {
  constexpr const char* kOp = "token_sum";
  want_inputs(kOp, in, 2);
  want_rank(kOp, in[0], 1);
  want_dtype(kOp, in[0], DType::f64);
  want_scalar(kOp, in[1], DType::f64);
  return {in[1]};
}

Work work(const Call& call) { return memory_bound(call, 1); }
Work work_gather(const Call& call) { return memory_bound(call, 0); }
Work work_token_sum(const Call& call) {
  return {static_cast<double>(call.in[0].numel()), total_bytes(call.in, call.out)};
}

void grad(GradContext& context) {
  context.add_grad(
      0, context.emit("segment_gather", {}, {context.grad_out(0), context.node().in[1]})[0]);
}

/// Segment numbers, and where there are several segments -1 for none.
Fill segments_below(int64_t segments) {
  return {.kind = Fill::Kind::integers,
          .lo = segments > 1 ? -1.0 : 0.0,
          .hi = static_cast<double>(segments - 1)};
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (auto [t, s] : {std::pair{12, 4}, {7, 3}, {1, 1}, {8, 16}}) {
    list.push_back({"T=" + std::to_string(t) + " S=" + std::to_string(s),
                    {{"segments", int64_t{s}}},
                    {{DType::f64, {t}}, {DType::i32, {t}}},
                    {{}, segments_below(s)},
                    {}});
  }
  return list;
}
std::vector<Sample> samples_gather() {
  std::vector<Sample> list;
  for (auto [t, s] : {std::pair{12, 4}, {7, 3}, {1, 1}, {8, 16}}) {
    list.push_back({"T=" + std::to_string(t) + " S=" + std::to_string(s),
                    {},
                    {{DType::f64, {s}}, {DType::i32, {t}}},
                    {{}, segments_below(s)},
                    {}});
  }
  return list;
}

std::vector<Sample> samples_token_sum() {
  const Fill scale{.kind = Fill::Kind::constant, .lo = 0.125};
  std::vector<Sample> list;
  for (const int64_t t : {12, 7, 1}) {
    list.push_back({"T=" + std::to_string(t),
                    {},
                    {{DType::f64, {t}}, {DType::f64, {1}}},
                    {Fill{}, scale},
                    {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "segment_sum",
                 .doc = "y[s] = sum of x[t] over the t with segments[t] = s, of `segments`; a "
                        "negative segment is none",
                 .infer = infer,
                 .layout = {"t,t->a", "t", "1"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .family = Family::loss});
  ops.push_back({.name = "segment_gather",
                 .doc = "y[t] = x[segments[t]], 0 for a negative segment",
                 .infer = infer_gather,
                 .layout = {"a,t->t", "t", "1"},
                 .work = work_gather,
                 .samples = samples_gather,
                 .family = Family::loss});
  ops.push_back({.name = "token_sum",
                 .doc = "y = scale * sum_t x[t]",
                 .infer = infer_token_sum,
                 .layout = {"t,.->.", "t", "10"},
                 .work = work_token_sum,
                 .samples = samples_token_sum,
                 .family = Family::loss});
}

}  // namespace hocket::ops::segment_sum

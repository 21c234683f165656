// SPDX-License-Identifier: Apache-2.0
// sample: draws a token per row of logits. Rows are those of different requests, so everything that
// says how is data: docs in kernels/cpu/sample.cc's order of changes, serve/request.h for meanings.
#include "ops/sample.h"
#include "ops/rules.h"

namespace hocket::ops::sample {
namespace {

constexpr const char* kOp = "sample";

enum : size_t { kLogits, kSettings, kDraws, kMask, kRanges, kTokens, kCounts, kBiases };

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs(kOp, in, 8);
  want_rank(kOp, in[kLogits], 2);
  want_float(kOp, in[kLogits]);
  const Dim& rows = in[kLogits].dims[0];
  const auto matrix = [&](size_t i, DType dtype, int64_t columns, const char* what) {
    want_rank(kOp, in[i], 2);
    want_dtype(kOp, in[i], dtype);
    want_equal(kOp, what, in[i].dims[0], rows);
    if (columns > 0) {
      want_equal(kOp, what, in[i].dims[1], columns);
    }
  };
  matrix(kSettings, DType::f64, kNumSettings, "settings");
  matrix(kDraws, DType::i64, kNumDraws, "draws");
  matrix(kMask, DType::i32, 0, "rows of the mask");
  matrix(kRanges, DType::i32, 2, "ranges of changes");
  want_rank(kOp, in[kTokens], 1);
  want_dtype(kOp, in[kTokens], DType::i32);
  want_vector(kOp, in[kCounts], DType::i32, in[kTokens].dims[0], "number of counts");
  want_vector(kOp, in[kBiases], DType::f64, in[kTokens].dims[0], "number of biases");
  const int64_t top = attrs.i("top"), vocab = attrs.i("vocab");
  if (top < 1) fail(kOp, "top is {}; expected alternatives to report", top);
  if (vocab < 1 || vocab > in[kLogits].dims[1]) {
    fail(kOp, "vocab is {}; expected 1 to the {} logits", vocab, in[kLogits].dims[1]);
  }
  if (const int64_t parts = attrs.i_or("parts", 1); parts < 1) {
    fail(kOp, "parts is {}; expected 1 or more", parts);
  }
  return {{DType::i32, {rows}},
          {DType::f64, {rows, 2}},
          {DType::i32, {rows, top}},
          {DType::f64, {rows, top}}};
}

Work work(const Call& call) { return memory_bound(call, 20); }

/// Bytes of two rows per thread: changed logits in the type of sums, and candidates.
int64_t workspace(const Call& call) {
  const int64_t v = call.in[kLogits].dims[1];
  return scratch_threads(call.attrs) *
         sample_scratch(v, graph::size_of(sum_dtype(call.in[0].dtype)));
}

std::vector<Sample> samples() {
  const Fill greedy{.kind = Fill::Kind::constant, .lo = 0};
  std::vector<Sample> list;
  list.push_back({"the most likely of 4 rows of 40",
                  {{"top", int64_t{3}}, {"vocab", int64_t{40}}},
                  {{DType::f64, {4, 40}},
                   {DType::f64, {4, kNumSettings}},
                   {DType::i64, {4, kNumDraws}},
                   {DType::i32, {4, 1}},
                   {DType::i32, {4, 2}},
                   {DType::i32, {2}},
                   {DType::i32, {2}},
                   {DType::f64, {2}}},
                  {{},
                   greedy,
                   {.kind = Fill::Kind::integers, .lo = -1, .hi = -1},
                   greedy,
                   greedy,
                   {.kind = Fill::Kind::integers, .hi = 39},
                   greedy,
                   {}},
                  {}});
  list.push_back(list[0]);
  list.back().name += ", in 3 parts";
  list.back().attrs.set("parts", int64_t{3});
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = kOp,
       .doc = "id[R], (log p of the model, log p of what it was drawn from, or the rank of a "
              "given token)[R,2], with setting `tempered` the first at the temperature, and the "
              "`top` most likely tokens of the model with log p, from logits[R,V], of which the "
              "first `vocab` are tokens, summed as in so many `parts` of the vocabulary; of a row "
              "with a logit that is not finite -1, and (that logit, its token); settings, "
              "draws, masks, and changes of logits of tokens are data (ops/sample.h)",
       .infer = infer,
       .layout = {"rv,rs,rn,rm,rc,a,a,a->r,rx,ry,ry", "r"},
       .work = work,
       .samples = samples,
       .workspace = workspace,
       .family = Family::loss});
}

}  // namespace hocket::ops::sample

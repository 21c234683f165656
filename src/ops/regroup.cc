// SPDX-License-Identifier: Apache-2.0
// regroup: routed rows from some chunks of tokens to others. Activations that the experts keep for
// the backward pass are in chunks of the forward pass; with it the backward pass may have another
// number of chunks (FSMoE, arXiv 2501.10714, chooses both degrees apart).
#include "ops/rules.h"

namespace hocket::ops::regroup {
namespace {

size_t chunks(const Attrs& attrs, const char* name) {
  const int64_t n = attrs.i(name);
  if (n < 1 || n > 1024) fail("regroup", "{} is {}; expected 1 to 1024 chunks", name, n);
  return static_cast<size_t>(n);
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  // First the arriving chunks: rows of the same experts, features and top_k, of any number of
  // tokens. Then, for each of them and for each new chunk, the number of rows per source and
  // expert, [sources, experts]: all of one size, with at least the experts of the rows (a rank may
  // have a part). The new chunks are equal parts of all tokens.
  constexpr const char* kOp = "regroup";
  const size_t from = chunks(attrs, "from");
  const size_t to = chunks(attrs, "to");
  want_inputs(kOp, in, 2 * from + to);
  int64_t tokens = 0;
  for (size_t chunk = 0; chunk < from; ++chunk) {
    TensorType like = in[chunk];
    if (!like.routed() || like.dims.size() < 3) {
      fail(kOp, "got {}; expected routed rows [E,T,F..]@k", to_string(like));
    }
    if (like.dims[1].symbolic()) fail(kOp, "got {}; expected a number of tokens", to_string(like));
    like.dims[1] = in[0].dims[1];
    want_same(kOp, like, in[0]);
    tokens += in[chunk].dims[1];
  }
  want_float(kOp, in[0]);
  for (size_t i = from; i < in.size(); ++i) {
    want_rank(kOp, in[i], 2);
    want_dtype(kOp, in[i], DType::i64);
    want_same(kOp, in[i], in[from]);
  }
  if (in[from].dims[1] < in[0].dims[0]) {
    fail(kOp, "got sizes {} for rows of {} experts", to_string(in[from]), in[0].dims[0]);
  }
  const int64_t count = static_cast<int64_t>(to);
  if (tokens % count != 0) fail(kOp, "{} tokens can't be {} chunks", tokens, count);
  TensorType chunk = in[0];
  chunk.dims[1] = tokens / count;
  return std::vector<TensorType>(to, chunk);
}

/// Work of moving rows, under even routing: each is read and written once.
Work work(const Call& call) {
  const size_t from = chunks(call.attrs, "from");
  double rows = 0;
  for (const TensorType& chunk : call.in.first(from)) {
    rows += static_cast<double>(chunk.dims[1] * chunk.top_k);
  }
  rows *= static_cast<double>(call.in[0].dims[0]) / static_cast<double>(call.in[from].dims[1]);
  const double bytes = 2 * rows * static_cast<double>(call.in[0].row_size() * element(call.in[0]));
  return {0, static_cast<int64_t>(bytes) + total_bytes(call.in.subspan(from), {})};
}

/// Read and write offsets of every chunk.
int64_t workspace(const Call& call) {
  return round_up(static_cast<int64_t>(chunks(call.attrs, "from")) * 8, 64) +
         round_up(static_cast<int64_t>(call.out.size()) * 8, 64);
}

/// Two chunks into one and into four, of 2 sources and 3 experts, with the same number of rows
/// each.
std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const int64_t to : {1, 4}) {
    Sample sample;
    sample.name = "2 chunks into " + std::to_string(to);
    sample.attrs = {{"from", int64_t{2}}, {"to", to}};
    const TensorType rows{DType::f64, {3, 6, 2}, 2};
    const TensorType sizes{DType::i64, {2, 3}};
    sample.types = {rows, rows, sizes, sizes};
    sample.fills = {
        {}, {}, {.kind = Fill::Kind::constant, .lo = 2}, {.kind = Fill::Kind::constant, .lo = 2}};
    for (int64_t chunk = 0; chunk < to; ++chunk) {
      sample.types.push_back(sizes);
      sample.fills.push_back({.kind = Fill::Kind::constant, .lo = 4.0 / static_cast<double>(to)});
    }
    list.push_back(std::move(sample));
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "regroup",
                 .doc = "rows of `from` chunks of tokens, and the sizes [n,E] that were exchanged "
                        "for each, in the `to` chunks that other sizes tell: per expert and source "
                        "the same rows in the same order",
                 .infer = infer,
                 .layout = {.notation = "*", .split = "", .positional = "e"},
                 .work = work,
                 .samples = samples,
                 .workspace = workspace,
                 .family = Family::routing,
                 .meaning = Meaning::regroup,
                 .takes_any_type = true});
}

}  // namespace hocket::ops::regroup

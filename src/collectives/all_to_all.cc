// SPDX-License-Identifier: Apache-2.0
// all_to_all(x, sizes) from, to -> y: takes a routed tensor from a split by token (dim 1) to a
// split by expert (dim 0), which sends rows to their experts, or back. With outer=n, the
// experts form n runs and every member has a block of each run; a plain all_to_all is then the
// second level. `slots`, or `blocks` on the way back, state the tokens of each rank where they
// differ.
#include <algorithm>

#include "base/math.h"
#include "collectives/parts.h"

namespace hocket::comm {

namespace {

/// Receives rows in the result's order (expert, token), each from its current holder.
void run_all_to_all(const CollectiveArgs& all, size_t me, int) {
  const int from = dim_of(*all.attrs, "from");
  const Rows rows(all.members[me].in[1], all.in[1].dims[0], all.in[1].dims[1],
                  outer_of(*all.attrs));
  const int64_t mine = static_cast<int64_t>(me);
  RowWriter out(all, me);
  if (from == 1) {
    // Token to expert split: takes the rows of this member's experts from every source.
    for (int64_t e = 0; e < rows.experts(); ++e) {
      if (rows.owner(e) != mine) continue;
      for (int64_t member = 0; member < rows.members(); ++member) {
        out.take(member, rows.begin(member, e, from), rows.of(member, e));
      }
    }
    return;
  }
  // Expert to token split: takes this member's rows from the owner of every expert.
  for (int64_t expert = 0; expert < rows.experts(); ++expert) {
    out.take(rows.owner(expert), rows.begin(mine, expert, from), rows.of(mine, expert));
  }
}

/// Returns the rows that run_all_to_all takes from one member: the rows of the receiver's experts,
/// or of the receiver's tokens.
std::vector<Slice> reads_all_to_all(const CollectiveArgs& all, size_t from, size_t to, int) {
  const int dim = dim_of(*all.attrs, "from");
  const Rows rows(all.members[from].in[1], all.in[1].dims[0], all.in[1].dims[1],
                  outer_of(*all.attrs));
  const int64_t row_bytes = all.in[0].bytes_of(all.in[0].row_size());
  const int64_t source = static_cast<int64_t>(dim == 1 ? from : to);
  const int64_t owner = static_cast<int64_t>(dim == 1 ? to : from);
  std::vector<Slice> slices;
  for (int64_t e = 0; e < rows.experts(); ++e) {
    if (rows.owner(e) != owner) continue;
    slices.push_back(
        {false, 0, rows.begin(source, e, dim) * row_bytes, rows.of(source, e) * row_bytes});
  }
  return slices;
}

}  // namespace

Op describe_all_to_all() {
  Op op;
  op.doc =
      "all_to_all(x, sizes) from, to -> y: takes a routed tensor from a split by token (dim 1) to "
      "one by expert (dim 0), or back; outer=n: the experts are n runs, with a block of each for "
      "every rank; slots=\"3,2,2\", on the way back blocks: tokens by rank, where they differ";
  op.takes = Takes::routed;
  op.move = {.part = Move::Part::block,
             .placed = Move::Placed::slot,
             .part_dim = "to",
             .slot_dim = "from",
             .in_parts = true};
  op.needs_sizes = true;
  // Bytes that even routing sends, or receives from members with more tokens; not the upper bound.
  op.payload = [](const Attrs& attrs, std::span<const TensorType> in,
                  std::span<const TensorType> out) {
    const bool to_experts = dim_of(attrs, "from") == 1;
    const TensorType& by_token = to_experts ? in[0] : out[0];
    const TensorType& by_expert = to_experts ? out[0] : in[0];
    int64_t tokens = by_token.dims[1];
    if (has_lengths(attrs)) {
      tokens = std::max(tokens, ceil_div(int64_t{by_expert.dims[1]}, in[1].dims[0]));
    }
    return tokens * by_token.top_k * by_token.bytes_of(by_token.row_size());
  };
  op.algorithms = [](double n, double payload) {
    return std::vector<Algorithm>{
        {.name = "direct", .rounds = 1, .bytes = (n - 1) / n * payload, .direct = true}};
  };
  op.run = run_all_to_all;
  op.reads = reads_all_to_all;
  op.samples = [](int64_t n) {
    using graph::DType;
    std::vector<Sample> list;
    for (int64_t from : {1, 0}) {
      for (int32_t top_k : {1, 2}) {
        // By token: all experts and some tokens; by expert: some experts and all tokens.
        const graph::Dims dims = from == 1 ? graph::Dims{2 * n, 5, 3} : graph::Dims{2, 5 * n, 3};
        list.push_back({{{"from", from}, {"to", 1 - from}},
                        {{DType::f64, dims, top_k}, {DType::i64, {n, 2 * n}}}});
        list.push_back(list.back());
        list.back().attrs.set("outer", int64_t{2});
      }
    }
    return list;
  };
  return op;
}

}  // namespace hocket::comm

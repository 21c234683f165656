// SPDX-License-Identifier: Apache-2.0
// attention_paged: causal grouped-query attention of new tokens to the keys and values of their
// sequences, which lie in pages (Kwon et al., PagedAttention, arXiv 2309.06180). New tokens of a
// sequence stand one behind the other; a step may have those of any number of sequences: whole
// prompts, parts of one, single tokens. Their keys and values are first written into the pages.
// Every query gets the bits that `attention` gives it in a document of its own, whatever else the
// step has. Keys of a page lie by feature, values by token.
#include <algorithm>

#include "ops/attention_rules.h"
#include "ops/rules.h"

namespace hocket::ops::attention_paged {
namespace {

constexpr const char* kOp = "attention_paged";

// Inputs.
enum : size_t { kQ, kK, kV, kKeyPages, kValuePages, kPositions, kSequences, kTable };

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs(kOp, in, 8);
  attrs.f("scale");
  want_window(kOp, attrs);
  want_softcap(kOp, attrs);
  want_heads(kOp, in);
  const TensorType &q = in[kQ], &k = in[kK];
  if (k.dims[1] == 0 || q.dims[1] % k.dims[1] != 0) {
    fail(kOp, "{} query heads over {} kv heads; expected a multiple", q.dims[1], k.dims[1]);
  }
  want_equal(kOp, "k's tokens", k.dims[0], q.dims[0]);
  for (const size_t pages : {kKeyPages, kValuePages}) {
    want_rank(kOp, in[pages], 4);
    want_dtype(kOp, in[pages], q.dtype);
    want_equal(kOp, "number of pages", in[pages].dims[0], in[kKeyPages].dims[0]);
    want_equal(kOp, "kv heads of the pages", in[pages].dims[1], k.dims[1]);
  }
  want_equal(kOp, "tokens of a page", in[kKeyPages].dims[3], kPageTokens);
  want_equal(kOp, "tokens of a page", in[kValuePages].dims[2], kPageTokens);
  want_equal(kOp, "head dim of the key pages", in[kKeyPages].dims[2], k.dims[2]);
  want_equal(kOp, "head dim of the value pages", in[kValuePages].dims[3], k.dims[2]);
  want_vector(kOp, in[kPositions], DType::i32, q.dims[0], "number of positions");
  want_vector(kOp, in[kSequences], DType::i32, q.dims[0], "number of sequence numbers");
  want_rank(kOp, in[kTable], 2);
  want_dtype(kOp, in[kTable], DType::i32);
  const int64_t pages = in[kKeyPages].dims[0], of_part = attrs.i_or("part_pages", pages);
  if (of_part < 1 || pages % of_part != 0) {
    fail(kOp, "{} pages in parts of {}; expected a multiple", pages, of_part);
  }
  return {q, in[kKeyPages], in[kValuePages]};
}

/// The same share of `size` as the indices are of `by_size`, in whole parts.
graph::Run share(graph::Run indices, int64_t by_size, int64_t size, int64_t parts) {
  if (parts < 1 || by_size % parts != 0 || size % parts != 0) return {0, size};
  const int64_t first = indices.begin / (by_size / parts);
  const int64_t end = ceil_div(indices.begin + indices.length, by_size / parts);
  return {first * (size / parts), (end - first) * (size / parts)};
}
/// The pages that these tokens may read, and the tokens that may write these pages: those of their
/// parts.
graph::Run pages_of(const Attrs& attrs, graph::Run tokens, int64_t by_size, int64_t size) {
  return share(tokens, by_size, size, size / attrs.i_or("part_pages", size));
}
graph::Run tokens_of(const Attrs& attrs, graph::Run pages, int64_t by_size, int64_t size) {
  return share(pages, by_size, size, by_size / attrs.i_or("part_pages", by_size));
}

/// Tokens of a sequence that a query reads at most.
int64_t longest(const Call& call) { return call.in[kTable].dims[1] * kPageTokens; }

/// Takes sequences as half as long as the table's bound, and every page as read once per step.
Work work(const Call& call) {
  const TensorType& q = call.in[kQ];
  const int64_t slots = longest(call), window = call.attrs.i_or("window", slots);
  const int64_t read = std::min(slots, window + kPageTokens) * call.in[kTable].dims[0];
  const int64_t of_token = 2 * call.in[kK].dims[1] * call.in[kK].dims[2] * element(q);
  return {2 * static_cast<double>(std::min(slots, 2 * window)) * static_cast<double>(q.numel()),
          2 * q.bytes() + read * of_token};
}

int64_t workspace(const Call& call) {
  const TensorType& q = call.in[kQ];
  const int64_t group = q.dims[1] / std::max<int64_t>(call.in[kK].dims[1], 1);
  const int64_t each =
      paged_scratch(q.dims[2], group, longest(call), graph::size_of(sum_dtype(q.dtype)));
  return paged_segments_bytes(q.dims[0]) + scratch_threads(call.attrs) * each;
}

std::vector<Sample> samples() {
  // Positions and sequence numbers of whole documents would follow each other; a sample has one
  // sequence, whose tokens count from 0.
  std::vector<Sample> list;
  for (const Attrs& more : {Attrs{}, Attrs{{"window", int64_t{2}}}, Attrs{{"softcap", 0.75}}}) {
    Attrs attrs = more;
    attrs.set("scale", 0.5);
    const TensorType q{DType::f64, {5, 4, 4}}, kv{DType::f64, {5, 2, 4}};
    const TensorType keys{DType::f64, {3, 2, 4, kPageTokens}};
    const TensorType values{DType::f64, {3, 2, kPageTokens, 4}};
    const TensorType numbers{DType::i32, {5}};
    const Fill zero{.kind = Fill::Kind::constant, .lo = 0};
    list.push_back({"5 tokens of a sequence, 3 pages" + graph::to_string(more),
                    attrs,
                    {q, kv, kv, keys, values, numbers, numbers, {DType::i32, {1, 2}}},
                    {{},
                     {},
                     {},
                     {},
                     {},
                     {.kind = Fill::Kind::counting},
                     zero,
                     {.kind = Fill::Kind::integers, .hi = 2}},
                    {}});
  }
  // Four tokens of a sequence; then two of each of two sequences that have pages of their own.
  for (const int64_t part : {2, 1}) {
    const Attrs attrs{{"scale", 0.5}, {"part_pages", part}};
    const TensorType q{DType::f64, {4, 4, 4}}, kv{DType::f64, {4, 2, 4}}, ids{DType::i32, {4}};
    const Fill zero{.kind = Fill::Kind::constant, .lo = 0};
    list.push_back({"4 tokens, 2 pages in parts of " + std::to_string(part),
                    attrs,
                    {q,
                     kv,
                     kv,
                     {DType::f64, {2, 2, 4, kPageTokens}},
                     {DType::f64, {2, 2, kPageTokens, 4}},
                     ids,
                     ids,
                     {DType::i32, {1, 1}}},
                    {{}, {}, {}, {}, {}, {.kind = Fill::Kind::counting}, zero, zero},
                    {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = kOp,
       .doc =
           "writes k, v of new tokens to the pages of their sequences, and attends to all of a "
           "sequence's tokens up to each, or the last `window` of them: token t is at pos[t] "
           "of sequence seq[t], whose tokens from 32 i on are in page table[seq[t], i]; a "
           "negative position is no token; with `part_pages`, pages and tokens are in as many "
           "equal "
           "parts, and a table's entries count in the part of the token (a rank has whole parts)",
       .infer = infer,
       .layout = {.notation = "thd,thd,thd,phds,phsd,t,t,rb->thd,phds,phsd",
                  .split = "thp",
                  .contractions = {{'t', Monoid::none}, {'p', Monoid::none}},
                  .support = {{'p', 0, 't', pages_of, true},
                              {'t', 1, 'p', tokens_of, true},
                              {'t', 2, 'p', tokens_of, true}}},
       .work = work,
       .samples = samples,
       .inplace = {{3, 1}, {4, 2}},
       .workspace = workspace,
       .cost_class = CostClass::attention,
       .family = Family::attention,
       .takes_any_type = true,
       .assumes =
           "page tables: no two sequences write into one page, a sequence's earlier tokens are "
           "in the pages that its table names, and these are in the part of its tokens"});
}

}  // namespace hocket::ops::attention_paged

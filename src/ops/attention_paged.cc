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
enum : size_t {
  kQ,
  kK,
  kV,
  kKeyPages,
  kValuePages,
  kPositions,
  kSequences,
  kKeyPositions,
  kKeySequences,
  kTable,
  kCopies
};

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs(kOp, in, 11);
  attrs.f("scale");
  want_window(kOp, attrs);
  want_softcap(kOp, attrs);
  want_heads(kOp, in);
  const TensorType &q = in[kQ], &k = in[kK];
  if (k.dims[1] == 0 || q.dims[1] % k.dims[1] != 0) {
    fail(kOp, "{} query heads over {} kv heads; expected a multiple", q.dims[1], k.dims[1]);
  }
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
  want_vector(kOp, in[kKeyPositions], DType::i32, k.dims[0], "number of keys' positions");
  want_vector(kOp, in[kKeySequences], DType::i32, k.dims[0], "number of keys' sequence numbers");
  want_rank(kOp, in[kTable], 2);
  want_dtype(kOp, in[kTable], DType::i32);
  want_rank(kOp, in[kCopies], 2);
  want_dtype(kOp, in[kCopies], DType::i32);
  want_equal(kOp, "sequences with copies", in[kCopies].dims[0], in[kTable].dims[0]);
  want_equal(kOp, "numbers of a copy", in[kCopies].dims[1], 2);
  return {q, in[kKeyPages], in[kValuePages]};
}

/// Returns the same share of `size` as the indices are of `by_size`, in whole parts: queries read
/// the pages and the new keys of their part, and a page gets the new keys of its part.
graph::Run of_part(const Attrs& attrs, graph::Run indices, int64_t by_size, int64_t size) {
  const int64_t parts = attrs.i_or("parts", 1);
  if (parts < 1 || by_size % parts != 0 || size % parts != 0) return {0, size};
  const int64_t first = indices.begin / (by_size / parts);
  const int64_t end = ceil_div(indices.begin + indices.length, by_size / parts);
  return {first * (size / parts), (end - first) * (size / parts)};
}
/// Pages do not depend on queries.
graph::Run no_queries(const Attrs& /*attrs*/, graph::Run /*pages*/, int64_t /*by_size*/,
                      int64_t /*size*/) {
  return {0, 0};
}

/// Tokens of a sequence that a query reads at most.
int64_t longest(const Call& call) { return call.in[kTable].dims[1] * kPageTokens; }

/// Assumes half of the table's bound as the mean length, and one read of each page per step.
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
  const int64_t each = paged_scratch(q.dims[2], graph::size_of(sum_dtype(q.dtype)));
  return paged_segments_bytes(q.dims[0]) + scratch_threads(call.attrs) * each;
}

std::vector<Sample> samples() {
  // Positions and sequence numbers of whole documents would follow each other; a sample has one
  // sequence, with positions from 0.
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
                    {q,
                     kv,
                     kv,
                     keys,
                     values,
                     numbers,
                     numbers,
                     numbers,
                     numbers,
                     {DType::i32, {1, 2}},
                     {DType::i32, {1, 2}}},
                    {{},
                     {},
                     {},
                     {},
                     {},
                     {.kind = Fill::Kind::counting},
                     zero,
                     {.kind = Fill::Kind::counting},
                     zero,
                     {.kind = Fill::Kind::integers, .hi = 2},
                     {.kind = Fill::Kind::constant, .lo = -1}},
                    {}});
  }
  // Four tokens of a sequence in one part; two of each of two sequences in one of two parts each.
  for (const int64_t parts : {1, 2}) {
    const Attrs attrs{{"scale", 0.5}, {"parts", parts}};
    const TensorType q{DType::f64, {4, 4, 4}}, kv{DType::f64, {4, 2, 4}}, ids{DType::i32, {4}};
    const Fill count{.kind = Fill::Kind::counting};
    const Fill half =
        parts == 2 ? Fill{.kind = Fill::Kind::halves} : Fill{.kind = Fill::Kind::constant, .lo = 0};
    list.push_back({"4 tokens, 2 pages, " + std::to_string(parts) + " parts",
                    attrs,
                    {q,
                     kv,
                     kv,
                     {DType::f64, {2, 2, 4, kPageTokens}},
                     {DType::f64, {2, 2, kPageTokens, 4}},
                     ids,
                     ids,
                     ids,
                     ids,
                     {DType::i32, {2, 1}},
                     {DType::i32, {2, 2}}},
                    {{}, {}, {}, {}, {}, count, half, count, half, half, half},
                    {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = kOp,
       .doc =
           "writes k, v of new tokens to the pages of their sequences, and attends with q to all "
           "of a sequence's tokens up to each, or the last `window` of them: query t is at pos[t] "
           "of sequence seq[t], whose tokens from 32 i on are in page table[seq[t], i], and so "
           "are keys; a negative position is no token. Before they are read, the tokens of "
           "sequence r up to number copies[r, 1], as far as one page has them, are copied from "
           "page copies[r, 0]; a negative page is none. With `parts`, queries, keys and pages are "
           "in as many equal parts, and a sequence has those of one part",
       .infer = infer,
       .layout = {.notation = "thd,nhd,nhd,phds,phsd,t,t,n,n,rb,rc->thd,phds,phsd",
                  .split = "thnp",
                  .positional = "p",
                  .contractions = {{'t', Monoid::none}, {'n', Monoid::none}, {'p', Monoid::none}},
                  .support = {{'n', 0, 't', of_part, true},
                              {'p', 0, 't', of_part, true},
                              {'n', 1, 'p', of_part, true},
                              {'n', 2, 'p', of_part, true},
                              {'t', 1, 'p', no_queries, true},
                              {'t', 2, 'p', no_queries, true}}},
       .work = work,
       .samples = samples,
       .inplace = {{3, 1}, {4, 2}},
       .workspace = workspace,
       .cost_class = CostClass::attention,
       .family = Family::attention,
       .takes_any_type = true,
       .assumes =
           "page tables: no two sequences write into one page, a sequence's earlier tokens are "
           "in the pages that its table names, or begin the page that they are copied from, and "
           "these are in the part of its tokens"});
}

}  // namespace hocket::ops::attention_paged

// SPDX-License-Identifier: Apache-2.0
// attention: causal grouped-query attention over packed documents. Query t attends to keys from t -
// pos[t] to t, where pos[t] is its position in its document, and to none before the last multiple
// of `seq`, the length of a sequence (without it all tokens are one sequence). `window` limits the
// number of keys, the last one its own (sliding-window attention: Beltagy et al., arXiv 2004.05150;
// Jiang et al., arXiv 2310.06825). `softcap` limits scores to cap * tanh(score / cap). t and s, the
// tokens of queries and of keys, may be cut apart: parts of the keys give parts of a softmax, which
// softmax_merge (merge.cc) merges. So may h and g, the heads of queries and of keys: head h reads
// the keys of head h / `group`; a part without those has no keys. The cost assumes whole sequences
// as documents unless the caller knows better.
//
// A document may have branches, which share its first tokens: where positions go back from what
// they count to p > 0, a branch begins that attends to the document's first p tokens and to its
// own. They are of the tokens before the document's first branch. So each branch has the values of
// a document of its own. A branch is in one part with its document.
#include <cmath>

#include "ops/attention_rules.h"
#include "ops/rules.h"

namespace hocket::ops::attention {
namespace {

void want_sequences(std::string_view op, const Attrs& attrs) {
  if (const int64_t length = attrs.i_or("seq", 1); length < 1) {
    fail(op, "seq is {}; expected tokens of a sequence", length);
  }
}

/// Parts of the heads need not be a multiple of each other; whole heads are, as the attribute says.
void want_group(std::string_view op, const Attrs& attrs) {
  if (const int64_t group = attrs.i("group"); group < 1) {
    fail(op, "group is {}; expected query heads per kv head", group);
  }
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("attention", in, 4);
  want_heads("attention", in);
  want_vector("attention", in[3], DType::i32, in[0].dims[0], "number of positions");
  attrs.f("scale");
  want_group("attention", attrs);
  want_sequences("attention", attrs);
  want_window("attention", attrs);
  want_softcap("attention", attrs);
  return {in[0], {sum_dtype(in[0].dtype), {in[0].dims[0], in[0].dims[1]}}};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_group("attention_bwd", attrs);
  want_sequences("attention_bwd", attrs);
  want_window("attention_bwd", attrs);
  want_softcap("attention_bwd", attrs);
  want_inputs("attention_bwd", in, 7);
  want_heads("attention_bwd", in.subspan(1, 3));
  want_same("attention_bwd", in[0], in[1]);
  want_same("attention_bwd", in[4], in[1]);
  want_same("attention_bwd", in[5], {sum_dtype(in[1].dtype), {in[1].dims[0], in[1].dims[1]}});
  want_vector("attention_bwd", in[6], DType::i32, in[1].dims[0], "number of positions");
  return {in[1], in[2], in[3]};
}

/// Keys that these queries may see: from the begin of the first one's sequence, or of its window,
/// to the last one.
graph::Run keys_of(const Attrs& attrs, graph::Run queries, int64_t /*by_size*/, int64_t size) {
  const int64_t end = std::max<int64_t>(queries.begin + queries.length, 1);
  const int64_t sequence = attrs.i_or("seq", end), window = attrs.i_or("window", end);
  const int64_t first = std::max(queries.begin / sequence * sequence, queries.begin + 1 - window);
  const int64_t begin = std::min(first, size);
  return {begin, std::min(queries.begin + queries.length, size) - begin};
}
/// Returns the queries that may attend to these keys: from the first key to the end of the last
/// key's sequence, or to the last query with a window that reaches it.
graph::Run queries_of(const Attrs& attrs, graph::Run keys, int64_t /*by_size*/, int64_t size) {
  const int64_t end = keys.begin + keys.length;
  const int64_t all = std::max({end, size, int64_t{1}});
  const int64_t sequence = attrs.i_or("seq", all), window = attrs.i_or("window", all);
  const int64_t begin = std::min(keys.begin, size);
  return {begin, std::min({round_up(end, sequence), end + window - 1, size}) - begin};
}

/// The kv heads that these query heads read, and the query heads that read these kv heads.
graph::Run kv_heads_of(const Attrs& attrs, graph::Run heads, int64_t /*by_size*/, int64_t size) {
  const int64_t group = attrs.i("group");
  const int64_t begin = std::min(heads.begin / group, size);
  const int64_t end = std::min((heads.begin + heads.length + group - 1) / group, size);
  return {begin, end - begin};
}
graph::Run heads_of(const Attrs& attrs, graph::Run kv_heads, int64_t /*by_size*/, int64_t size) {
  const int64_t group = attrs.i("group");
  const int64_t begin = std::min(kv_heads.begin * group, size);
  return {begin, std::min((kv_heads.begin + kv_heads.length) * group, size) - begin};
}

/// Average number of keys that a query of a document attends to, by the document's length: half of
/// it, and no more than a window.
double keys_in_document(const Attrs& attrs, double length) {
  const double window = static_cast<double>(attrs.i_or("window", 0));
  if (window == 0 || window >= length) return (length + 1) / 2;
  return window - window * (window - 1) / (2 * length);
}
/// Returns the average number of local keys per query, for documents that are whole sequences of
/// `seq` tokens: the local share of all keys in reach.
double average_keys(const Attrs& attrs, int64_t queries, int64_t keys) {
  const int64_t sequence = attrs.i_or("seq", keys);
  const int64_t window = attrs.i_or("window", sequence), step = std::max<int64_t>(keys, 1);
  const double reach =
      static_cast<double>(std::min(sequence, round_up(queries + window - 1, step)));
  const double here = static_cast<double>(keys);
  return keys_in_document(attrs, static_cast<double>(sequence)) * (here < reach ? here / reach : 1);
}

/// Returns the FLOPs of one product of blocks (two in the forward pass, five backward). `mean_keys`
/// is that of documents without a window, taken as equally long.
double product_flops(const Attrs& attrs, const TensorType& queries, const TensorType& keys,
                     double mean_keys = 0) {
  const double seen = mean_keys > 0 ? keys_in_document(attrs, 2 * mean_keys - 1)
                                    : average_keys(attrs, queries.dims[0], keys.dims[0]);
  return 2 * seen * static_cast<double>(queries.numel());
}
Work work(const Call& call) {
  return {2 * product_flops(call.attrs, call.in[0], call.in[1]), total_bytes(call.in, call.out)};
}
Work work_bwd(const Call& call) {
  return {5 * product_flops(call.attrs, call.in[1], call.in[2]), total_bytes(call.in, call.out)};
}
/// Document boundaries, and the blocks of each thread.
int64_t workspace(const Call& call) {
  const TensorType& type = call.in[0];
  return round_up(type.dims[0] * 20, 64) +
         scratch_threads(call.attrs) * attention_scratch(type.dims[2], element(type));
}
/// The same, and the sums of do * o per token and head.
int64_t workspace_bwd(const Call& call) {
  const TensorType& type = call.in[1];
  return round_up(type.dims[0] * 20, 64) +
         round_up(type.dims[0] * type.dims[1] * element(type), 64) +
         scratch_threads(call.attrs) * attention_bwd_scratch(type.dims[2], element(type));
}
double model_flops(const Attrs& attrs, Types in, double mean_keys) {
  return 2 * product_flops(attrs, in[0], in[1], mean_keys);
}

void grad(GradContext& context) {
  const auto& node = context.node();
  auto d = context.emit("attention_bwd", node.attrs,
                        {context.grad_out(0), node.in[0], node.in[1], node.in[2], node.out[0],
                         node.out[1], node.in[3]});
  for (int i = 0; i < 3; ++i) {
    context.add_grad(i, d[i]);
  }
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  struct Case {
    int64_t t, h, g, d, seq, window = 0;
    double softcap = 0;
  };
  for (Case c :
       {Case{12, 4, 2, 4, 6}, Case{8, 2, 2, 3, 2}, Case{8, 2, 2, 4, 0}, Case{7, 3, 1, 5, 4},
        Case{1, 1, 1, 2, 0}, Case{12, 4, 2, 4, 6, 2}, Case{8, 2, 2, 4, 0, 3},
        Case{9, 2, 1, 3, 0, 1}, Case{12, 4, 2, 4, 6, 0, 1.5}, Case{8, 2, 1, 4, 0, 3, 0.75}}) {
    const TensorType q{DType::f64, {c.t, c.h, c.d}};
    const TensorType kv{DType::f64, {c.t, c.g, c.d}};
    Attrs attrs{{"scale", 0.5}, {"group", c.h / c.g}};
    // One document over all tokens where they are one sequence.
    Fill positions{.kind = Fill::Kind::counting};
    if (c.seq > 0) {
      attrs.set("seq", c.seq);
      positions = {.kind = Fill::Kind::documents};
    }
    std::string name = to_string(q) + " " + to_string(kv);
    if (c.window > 0) {
      attrs.set("window", c.window);
      name += " window " + std::to_string(c.window);
    }
    if (c.softcap > 0) {
      attrs.set("softcap", c.softcap);
      name += " softcap";
    }
    list.push_back(
        {name, attrs, {q, kv, kv, {DType::i32, {c.t}}}, {{}, {}, {}, positions}, {}, 1e-5});
  }
  return list;
}
std::vector<Sample> samples_bwd() {
  const TensorType q{DType::f64, {12, 4, 4}};
  const TensorType kv{DType::f64, {12, 2, 4}};
  const TensorType lse{DType::f64, {12, 4}};
  const Fill from{.kind = Fill::Kind::from_op};
  std::vector<Sample> list;
  struct Case {
    int64_t seq, window = 0;
    double softcap = 0;
  };
  for (const auto& [seq, window, softcap] :
       {Case{12}, Case{6}, Case{12, 3}, Case{6, 2}, Case{12, 0, 1.5}, Case{6, 2, 0.75}}) {
    Attrs attrs{{"scale", 0.5}, {"group", int64_t{2}}, {"seq", seq}};
    const Fill positions =
        seq < 12 ? Fill{.kind = Fill::Kind::documents} : Fill{.kind = Fill::Kind::counting};
    std::string name = "12 tokens, 4 over 2 heads, sequences of " + std::to_string(seq);
    if (window > 0) {
      attrs.set("window", window);
      name += ", window " + std::to_string(window);
    }
    if (softcap > 0) {
      attrs.set("softcap", softcap);
      name += ", softcap";
    }
    list.push_back({name,
                    attrs,
                    {q, q, kv, kv, q, lse, {DType::i32, {12}}},
                    {{}, {}, {}, {}, from, from, positions},
                    {{"attention", attrs, {1, 2, 3, 6}, {4, 5}}}});
  }
  return list;
}
}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "attention",
                 .doc =
                     "o = softmax(scale q k^T, below `softcap` if there is one) v, causal inside "
                     "documents (pos[T]: tokens of the "
                     "document before this one; where it goes back to p > 0 a branch begins, of "
                     "the document's first p), over the last `window` keys if there is one; lse "
                     "= log sum exp; o = 0, lse = -inf without keys; head h reads kv head h / "
                     "group",
                 .infer = infer,
                 .layout = {.notation = "thd,sgd,sgd,t->thd,th",
                            .split = "tshg",
                            .positional = "tshg",
                            .contractions = {{'s', Monoid::softmax}, {'g', Monoid::softmax}},
                            .support = {{'s', 0, 't', keys_of},
                                        {'s', 1, 't', keys_of},
                                        {'g', 0, 'h', kv_heads_of},
                                        {'g', 1, 'h', kv_heads_of}}},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .workspace = workspace,
                 .cost_class = CostClass::attention,
                 .family = Family::attention,
                 .model_flops = model_flops});
  ops.push_back({.name = "attention_bwd",
                 .doc = "dq, dk, dv from do and the saved q, k, v, o, lse (FlashAttention-2, arXiv "
                        "2307.08691)",
                 .infer = infer_bwd,
                 .layout = {.notation = "thd,thd,sgd,sgd,thd,th,t->thd,sgd,sgd",
                            .split = "tshg",
                            .linear = "1",
                            .positional = "tshg",
                            .support = {{'s', 0, 't', keys_of},
                                        {'t', 1, 's', queries_of},
                                        {'t', 2, 's', queries_of},
                                        {'g', 0, 'h', kv_heads_of},
                                        {'h', 1, 'g', heads_of},
                                        {'h', 2, 'g', heads_of}}},
                 .work = work_bwd,
                 .samples = samples_bwd,
                 .workspace = workspace_bwd,
                 .cost_class = CostClass::attention,
                 .family = Family::attention});
}

}  // namespace hocket::ops::attention

// SPDX-License-Identifier: Apache-2.0
// The loss of logits z[T,V] in steps, each on a part of the vocabulary (v): rowmax, sumexp, lse_of,
// pick, nll, dlogits; lse is the first three in one. Per token, parts exchange a number each: the
// maximum, the sum of exponentials and the target's logit, all f64 or exact. linear_cross_entropy
// is defined by these ops, and with token_logprob, token_entropy, logit_mean, token_misses and
// token_dlogits token_logprobs. A target of -100 is ignored; `vocab` is the whole vocabulary. The
// gradient is dlogits itself: the ops are steps of a loss that makes its gradients, and have no
// rule of their own.
#include "ops/rules.h"

namespace hocket::ops::vocabulary_loss {
namespace {

void want_logits(std::string_view op, const TensorType& z) {
  want_rank(op, z, 2);
  want_float(op, z);
}
void want_vocabulary(std::string_view op, const Attrs& attrs, const TensorType& z) {
  if (const int64_t vocab = attrs.i("vocab"); z.dims[1] > vocab) {
    fail(op, "got {} logits per token; expected at most vocab={}", z.dims[1], vocab);
  }
}
void want_targets(std::string_view op, const TensorType& y, const Dim& tokens) {
  want_vector(op, y, DType::i32, tokens, "number of targets");
}
TensorType per_token(DType dtype, const TensorType& like) { return {dtype, {like.dims[0]}}; }

std::vector<TensorType> infer_rowmax(const Attrs&, Types in) {
  want_inputs("rowmax", in, 1);
  want_logits("rowmax", in[0]);
  return {per_token(in[0].dtype, in[0])};
}

std::vector<TensorType> infer_sumexp(const Attrs&, Types in) {
  want_inputs("sumexp", in, 2);
  want_logits("sumexp", in[0]);
  want_same("sumexp", in[1], per_token(in[0].dtype, in[0]));
  return {per_token(DType::f64, in[0])};
}

std::vector<TensorType> infer_lse_of(const Attrs&, Types in) {
  want_inputs("lse_of", in, 2);
  want_rank("lse_of", in[0], 1);
  want_float("lse_of", in[0]);
  want_same("lse_of", in[1], per_token(DType::f64, in[0]));
  return {in[1]};
}

std::vector<TensorType> infer_lse(const Attrs&, Types in) {
  want_inputs("lse", in, 1);
  want_logits("lse", in[0]);
  return {per_token(DType::f64, in[0])};
}

std::vector<TensorType> infer_pick(const Attrs& attrs, Types in) {
  want_inputs("pick", in, 2);
  want_logits("pick", in[0]);
  want_vocabulary("pick", attrs, in[0]);
  want_targets("pick", in[1], in[0].dims[0]);
  return {per_token(in[0].dtype, in[0])};
}

std::vector<TensorType> infer_nll(const Attrs&, Types in) {
  want_inputs("nll", in, 4);
  want_rank("nll", in[0], 1);
  want_float("nll", in[0]);
  want_same("nll", in[1], per_token(DType::f64, in[0]));
  want_targets("nll", in[2], in[0].dims[0]);
  want_scalar("nll", in[3], DType::f64);
  return {{DType::f64, {1}}};
}

std::vector<TensorType> infer_dlogits(const Attrs& attrs, Types in) {
  want_inputs("dlogits", in, 4);
  want_logits("dlogits", in[0]);
  want_vocabulary("dlogits", attrs, in[0]);
  want_targets("dlogits", in[1], in[0].dims[0]);
  want_same("dlogits", in[2], per_token(DType::f64, in[0]));
  want_scalar("dlogits", in[3], DType::f64);
  return {in[0]};
}

std::vector<TensorType> infer_token_logprob(const Attrs&, Types in) {
  constexpr const char* kOp = "token_logprob";
  want_inputs(kOp, in, 3);
  want_rank(kOp, in[0], 1);
  want_float(kOp, in[0]);
  want_same(kOp, in[1], per_token(DType::f64, in[0]));
  want_targets(kOp, in[2], in[0].dims[0]);
  return {in[1], in[1]};
}

std::vector<TensorType> infer_token_entropy(const Attrs&, Types in) {
  constexpr const char* kOp = "token_entropy";
  want_inputs(kOp, in, 3);
  want_logits(kOp, in[0]);
  want_targets(kOp, in[1], in[0].dims[0]);
  want_same(kOp, in[2], per_token(DType::f64, in[0]));
  return {in[2]};
}

std::vector<TensorType> infer_token_dlogits(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "token_dlogits";
  if (in.size() != 4 && in.size() != 6) fail(kOp, "got {} inputs; expected 4 or 6", in.size());
  want_logits(kOp, in[0]);
  want_vocabulary(kOp, attrs, in[0]);
  want_targets(kOp, in[1], in[0].dims[0]);
  for (size_t i = 2; i < in.size(); ++i) {
    want_same(kOp, in[i], per_token(DType::f64, in[0]));
  }
  return {in[0]};
}

std::vector<TensorType> infer_logit_mean(const Attrs& attrs, Types in) {
  want_inputs("logit_mean", in, 2);
  want_logits("logit_mean", in[0]);
  want_vocabulary("logit_mean", attrs, in[0]);
  want_targets("logit_mean", in[1], in[0].dims[0]);
  return {per_token(DType::f64, in[0])};
}

std::vector<TensorType> infer_token_misses(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "token_misses";
  want_inputs(kOp, in, 3);
  want_logits(kOp, in[0]);
  want_vocabulary(kOp, attrs, in[0]);
  want_same(kOp, in[1], per_token(in[0].dtype, in[0]));
  want_targets(kOp, in[2], in[0].dims[0]);
  return {per_token(DType::f64, in[0])};
}

/// Work with a number of FLOPs per element of the first input.
template <int flops>
Work per_element(const Call& call) {
  return {flops * static_cast<double>(call.in[0].numel()), total_bytes(call.in, call.out)};
}
/// Work of picking: one logit per token is read.
Work work_pick(const Call& call) { return {0, call.in[1].bytes() + 2 * call.out[0].bytes()}; }

std::vector<int> define_lse(Definition& graph, const Attrs&, std::span<const int> in) {
  const int top = graph.apply("rowmax", {}, {in[0]})[0];
  const int sum = graph.apply("sumexp", {}, {in[0], top})[0];
  return graph.apply("lse_of", {}, {top, sum});
}

/// Samples of token_misses: many targets are the most likely token of two, few that of twelve.
std::vector<Sample> samples_of_misses() {
  std::vector<Sample> list;
  for (const int64_t vocab : {int64_t{12}, int64_t{2}}) {
    const Attrs attrs{{"vocab", vocab}};
    const Fill targets{.kind = Fill::Kind::targets, .hi = static_cast<double>(vocab)};
    list.push_back({"6 tokens of " + std::to_string(vocab),
                    attrs,
                    {{DType::f64, {6, vocab}}, {DType::f64, {6}}, {DType::i32, {6}}},
                    {Fill{}, Fill{.kind = Fill::Kind::from_op}, targets},
                    {{"pick", attrs, {0, 2}, {1}}}});
  }
  return list;
}

constexpr int64_t kT = 6, kV = 12;
const Attrs kVocabulary{{"vocab", kV}};
const TensorType kZ{DType::f64, {kT, kV}};
const TensorType kPerToken{DType::f64, {kT}};
const TensorType kTargets{DType::i32, {kT}};
const TensorType kScalar{DType::f64, {1}};
const Fill kLogits{.scale = 2};
const Fill kAnyTarget{.kind = Fill::Kind::targets, .hi = kV};
const Fill kScale{.kind = Fill::Kind::constant, .lo = 0.125};
const Fill kFrom{.kind = Fill::Kind::from_op};

std::vector<Sample> one(Attrs attrs, std::vector<TensorType> types, std::vector<Fill> fills,
                        std::vector<ChainStep> chain = {}) {
  return {
      {"6 tokens of 12", std::move(attrs), std::move(types), std::move(fills), std::move(chain)}};
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  // In the order in which a loss applies them. All but lse and lse_of run on a part of the
  // vocabulary: rowmax and token_misses give a part of a maximum, sumexp and pick of a sum, dlogits
  // its columns.
  ops.push_back(
      {.name = "rowmax",
       .doc = "m[t] = max_v z[t,v]; -inf of no logits",
       .infer = infer_rowmax,
       .layout = {.notation = "tv->t", .split = "tv", .contractions = {{'v', Monoid::max}}},
       .work = per_element<1>,
       .samples = [] { return one({}, {kZ}, {kLogits}); },
       .family = Family::loss});
  ops.push_back(
      {.name = "sumexp",
       .doc = "s[t] = sum_v e^(z[t,v] - m[t]), in fp64",
       .infer = infer_sumexp,
       .layout = {"tv,t->t", "tv"},
       .work = per_element<2>,
       .samples =
           [] {
             return one({}, {kZ, kPerToken}, {kLogits, kFrom}, {{"rowmax", {}, {0}, {1}}});
           },
       .family = Family::loss});
  ops.push_back({.name = "lse_of",
                 .doc = "l[t] = m[t] + log s[t], in fp64",
                 .infer = infer_lse_of,
                 .layout = {"t,t->t", "t"},
                 .work = per_element<2>,
                 .samples =
                     [] {
                       return one({}, {kPerToken, kPerToken},
                                  {Fill{}, Fill{.kind = Fill::Kind::uniform, .lo = 1, .hi = 9}});
                     },
                 .family = Family::loss});
  ops.push_back({.name = "lse",
                 .doc = "l[t] = log sum_v e^z[t,v], in fp64",
                 .infer = infer_lse,
                 .layout = {"tv->t", "t"},
                 .work = per_element<3>,
                 .samples = [] { return one({}, {kZ}, {kLogits}); },
                 .family = Family::loss,
                 .define = define_lse,
                 .defined = Defined::alias});
  ops.push_back(
      {.name = "pick",
       .doc = "x[t] = z[t,y[t]], 0 where the target is ignored or not among these logits",
       .infer = infer_pick,
       .layout = {.notation = "tv,t->t", .split = "tv", .linear = "10", .positional = "v"},
       .work = work_pick,
       .samples =
           [] {
             return one(kVocabulary, {kZ, kTargets}, {kLogits, kAnyTarget});
           },
       .family = Family::loss});
  ops.push_back({.name = "nll",
                 .doc = "loss = scale * sum_t (l[t] - x[t]), ignored targets left out",
                 .infer = infer_nll,
                 .layout = {"t,t,t,.->.", "t"},
                 .work = per_element<2>,
                 .samples =
                     [] {
                       return one(kVocabulary, {kPerToken, kPerToken, kTargets, kScalar},
                                  {Fill{}, Fill{}, kAnyTarget, kScale});
                     },
                 .accumulates = {0},
                 .family = Family::loss});
  ops.push_back({.name = "dlogits",
                 .doc = "dz[t,v] = scale * (e^(z[t,v] - l[t]) - [v = y[t]]), 0 where the target is "
                        "ignored",
                 .infer = infer_dlogits,
                 .layout = {.notation = "tv,t,t,.->tv", .split = "tv", .positional = "v"},
                 .work = per_element<3>,
                 .samples =
                     [] {
                       return one(kVocabulary, {kZ, kTargets, kPerToken, kScalar},
                                  {kLogits, kAnyTarget, kFrom, kScale}, {{"lse", {}, {0}, {2}}});
                     },
                 .family = Family::loss});
  ops.push_back(
      {.name = "token_logprob",
       .doc = "x[t] - l[t], and l[t], 0 where the target is ignored",
       .infer = infer_token_logprob,
       .layout = {"t,t,t->t,t", "t"},
       .work = per_element<1>,
       .samples =
           [] {
             return one({}, {kPerToken, kPerToken, kTargets}, {Fill{}, Fill{}, kAnyTarget});
           },
       .family = Family::loss});
  ops.push_back({.name = "token_entropy",
                 .doc = "-sum_v p log p of p = e^(z[t,v] - l[t]), 0 where the target is ignored",
                 .infer = infer_token_entropy,
                 .layout = {"tv,t,t->t", "tv"},
                 .work = per_element<4>,
                 .samples =
                     [] {
                       return one({}, {kZ, kTargets, kPerToken}, {kLogits, kAnyTarget, kFrom},
                                  {{"lse", {}, {0}, {2}}});
                     },
                 .family = Family::loss});
  ops.push_back({.name = "logit_mean",
                 .doc = "m[t] = sum_v z[t,v] / vocab, in fp64, 0 where the target is ignored",
                 .infer = infer_logit_mean,
                 .layout = {.notation = "tv,t->t", .split = "tv", .linear = "10"},
                 .work = per_element<1>,
                 .samples =
                     [] {
                       return one(kVocabulary, {kZ, kTargets}, {kLogits, kAnyTarget});
                     },
                 .family = Family::loss});
  ops.push_back(
      {.name = "token_misses",
       .doc =
           "1 where some z[t,v] > x[t], or z[t,v] = x[t] of a v < y[t], x[t] = z[t,y[t]]: y[t] is "
           "not the first of the most likely tokens; 0 elsewhere and where the target is ignored",
       .infer = infer_token_misses,
       .layout = {.notation = "tv,t,t->t",
                  .split = "tv",
                  .positional = "v",
                  .contractions = {{'v', Monoid::max}}},
       .work = per_element<1>,
       .samples = samples_of_misses,
       .family = Family::loss});
  ops.push_back(
      {.name = "token_dlogits",
       .doc = "dz[t,v] = a[t] * ([v = y[t]] - p) - b[t] * p * (log p + H[t]) of p = e^(z[t,v] - "
              "l[t]), gradients a of log-probabilities and b of entropies H; 0 where the target "
              "is ignored",
       .infer = infer_token_dlogits,
       .layout = {.notation = "tv,t,t,t->tv|tv,t,t,t,t,t->tv", .split = "tv", .positional = "v"},
       .work = per_element<5>,
       .samples =
           [] {
             std::vector<Sample> list =
                 one(kVocabulary, {kZ, kTargets, kPerToken, kPerToken},
                     {kLogits, kAnyTarget, kFrom, Fill{}}, {{"lse", {}, {0}, {2}}});
             list.push_back({"entropies",
                             kVocabulary,
                             {kZ, kTargets, kPerToken, kPerToken, kPerToken, kPerToken},
                             {kLogits, kAnyTarget, kFrom, Fill{}, kFrom, Fill{}},
                             {{"lse", {}, {0}, {2}}, {"token_entropy", {}, {0, 1, 2}, {4}}}});
             return list;
           },
       .family = Family::loss});
}

}  // namespace hocket::ops::vocabulary_loss

// SPDX-License-Identifier: Apache-2.0
// Losses of reinforcement learning, from the log-probabilities of samples. Formulas, their
// sources and the names that other trainers have for the attributes: docs/rl-losses.md.
// policy_loss takes tokens (if split, its loss is a partial sum); sequence_policy_loss takes
// whole samples (GSPO, arXiv 2507.18071); value_loss is the critic's. Weights hold the mean over
// tokens or samples of the whole update. An element of weight 0 has loss and gradient 0, with any
// other numbers.
#include <array>

#include "ops/rules.h"

namespace hocket::ops::policy_loss {
namespace {

void want_choice(std::string_view op, const Attrs& attrs, const char* key,
                 std::initializer_list<std::string_view> choices) {
  const std::string& got = attrs.s(key);
  std::string expected;
  for (const std::string_view choice : choices) {
    if (got == choice) return;
    expected += (expected.empty() ? "" : ", ") + std::string(choice);
  }
  fail(op, "{} is {}; expected one of {}", key, got, expected);
}

void want_at_least_zero(std::string_view op, const Attrs& attrs, const char* key) {
  if (const double got = attrs.f(key); !(got >= 0 && std::isfinite(got))) {
    fail(op, "{} is {}; expected a number of at least 0", key, got);
  }
}

bool with_grad(std::string_view op, const Attrs& attrs) {
  const int64_t grad = attrs.i("grad");
  if (grad != 0 && grad != 1) fail(op, "grad is {}; expected 0 or 1", grad);
  return grad == 1;
}

/// Expects f64 vectors of one length as inputs [begin, end), and the scale behind them.
void want_vectors(std::string_view op, Types in, size_t begin, size_t end) {
  want_rank(op, in[begin], 1);
  for (size_t i = begin; i < end; ++i) {
    want_dtype(op, in[i], DType::f64);
    want_same(op, in[i], in[begin]);
  }
  want_scalar(op, in[end], DType::f64);
}

const TensorType kLoss{DType::f64, {1}};

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "policy_loss";
  want_inputs(kOp, in, 7);
  want_vectors(kOp, in, 0, 6);
  want_choice(kOp, attrs, "kind", {"ppo", "cispo", "reinforce", "none"});
  want_choice(kOp, attrs, "kl", {"none", "k1", "k2", "k3"});
  for (const char* key : {"clip_low", "clip_high", "dual_clip", "kl_coef"}) {
    want_at_least_zero(kOp, attrs, key);
  }
  if (const double dual = attrs.f("dual_clip"); dual != 0 && !(dual > 1)) {
    fail(kOp, "dual_clip is {}; expected 0 or a number above 1", dual);
  }
  if (const double coef = attrs.f("entropy_coef"); !std::isfinite(coef)) {
    fail(kOp, "entropy_coef is {}; expected a finite number", coef);
  }
  if (!with_grad(kOp, attrs)) return {kLoss};
  return {kLoss, in[0], in[1]};
}

std::vector<TensorType> infer_sequence(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "sequence_policy_loss";
  want_inputs(kOp, in, 6);
  want_vectors(kOp, in, 0, 5);
  want_at_least_zero(kOp, attrs, "clip_low");
  want_at_least_zero(kOp, attrs, "clip_high");
  if (!with_grad(kOp, attrs)) return {kLoss};
  return {kLoss, in[0]};
}

std::vector<TensorType> infer_value(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "value_loss";
  want_inputs(kOp, in, 5);
  want_rank(kOp, in[0], 2);
  want_float(kOp, in[0]);
  want_equal(kOp, "values of a token", in[0].dims[1], 1);
  want_vectors(kOp, in, 1, 4);
  want_equal(kOp, "number of tokens", in[1].dims[0], in[0].dims[0]);
  want_at_least_zero(kOp, attrs, "clip");
  if (!with_grad(kOp, attrs)) return {kLoss};
  return {kLoss, in[0]};
}

/// Work of a number of FLOPs per element of the first input.
template <int flops>
Work work(const Call& call) {
  return {flops * static_cast<double>(call.in[0].numel()), total_bytes(call.in, call.out)};
}

void want_grad(const GradContext& context) {
  if (context.node().attrs.i("grad") == 0) {
    fail(context.node().op, "grad=0 has no gradient; expected grad=1");
  }
}
void grad(GradContext& context) {
  want_grad(context);
  context.add_grad(0, context.node().out[1]);
}
void grad_of_tokens(GradContext& context) {
  grad(context);
  if (context.needs(1) && context.node().attrs.f("entropy_coef") != 0) {
    context.add_grad(1, context.node().out[2]);
  }
}

Attrs attrs_of(const char* kind, const char* kl, double dual_clip = 0, double entropy_coef = 0.3) {
  return {{"kind", std::string(kind)},    {"clip_low", 0.2},       {"clip_high", 0.28},
          {"dual_clip", dual_clip},       {"kl", std::string(kl)}, {"kl_coef", 0.1},
          {"entropy_coef", entropy_coef}, {"grad", int64_t{1}}};
}

/// Log-probabilities that ratios on both sides of the clip come of.
const Fill kLogprob{.scale = 0.5};
const Fill kWeight{.kind = Fill::Kind::uniform};
const Fill kScale{.kind = Fill::Kind::constant, .lo = 0.25};

std::vector<Sample> samples() {
  std::vector<Sample> list;
  const auto add = [&](const char* name, Attrs attrs, int64_t tokens) {
    const TensorType token{DType::f64, {tokens}};
    list.push_back({name,
                    std::move(attrs),
                    {token, token, token, token, token, token, kLoss},
                    {kLogprob, kWeight, kLogprob, kLogprob, {}, kWeight, kScale},
                    {}});
  };
  add("ppo", attrs_of("ppo", "none"), 12);
  add("ppo, k1", attrs_of("ppo", "k1"), 8);
  add("ppo, k2, dual clip", attrs_of("ppo", "k2", 1.25), 16);
  add("ppo, k3", attrs_of("ppo", "k3"), 7);
  add("cispo, k3", attrs_of("cispo", "k3"), 12);
  list.back().smooth = false;  // the clipped ratio is a constant of the gradient
  add("reinforce", attrs_of("reinforce", "k3"), 1);
  add("k3 alone", attrs_of("none", "k3"), 4);
  add("loss only", attrs_of("ppo", "k3"), 12);
  list.back().attrs.set("grad", int64_t{0});
  return list;
}

std::vector<Sample> samples_sequence() {
  std::vector<Sample> list;
  for (auto [count, grad] : {std::pair{6, 1}, {1, 1}, {6, 0}}) {
    const TensorType each{DType::f64, {count}};
    list.push_back(
        {std::to_string(count) + (grad ? " samples" : " samples, loss only"),
         {{"clip_low", 0.2}, {"clip_high", 0.28}, {"grad", int64_t{grad}}},
         {each, each, each, each, each, kLoss},
         {Fill{}, Fill{}, Fill{}, kWeight, {.kind = Fill::Kind::uniform, .lo = 1, .hi = 9}, kScale},
         {}});
  }
  return list;
}

std::vector<Sample> samples_value() {
  std::vector<Sample> list;
  for (auto [tokens, clip, grad] :
       {std::tuple{12, 0.2, 1}, {7, 0.0, 1}, {1, 0.2, 1}, {12, 0.2, 0}}) {
    const TensorType token{DType::f64, {tokens}};
    list.push_back({"T=" + std::to_string(tokens) + (clip > 0 ? ", clipped" : "") +
                        (grad ? "" : ", loss only"),
                    {{"clip", clip}, {"grad", int64_t{grad}}},
                    {{DType::f64, {tokens, 1}}, token, token, token, kLoss},
                    {kLogprob, kLogprob, Fill{}, kWeight, kScale},
                    {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = "policy_loss",
       .doc = "inputs logp[T], entropies[T], old[T], reference[T], advantages[T], weights[T], "
              "scale: scale * sum_t weights[t] (pg + kl_coef kl - entropy_coef entropies[t]); pg "
              "by `kind`: ppo, max(-r A, -clip(r) A), at most -dual_clip A where A < 0; cispo, "
              "-clip(r) A logp, its gradient with a constant clip(r); reinforce, -A logp; none; "
              "r = e^(logp - old) clipped to [1 - clip_low, 1 + clip_high]; kl of d = logp - "
              "reference: k1, d; k2, d^2 / 2; k3, e^-d - 1 + d; with grad=1 also dlogp, dentropies",
       .infer = infer,
       .layout = {"t,t,t,t,t,t,.->.,t,t|t,t,t,t,t,t,.->.", "t"},
       .work = work<60>,
       .grad = grad_of_tokens,
       .samples = samples,
       .accumulates = {0},
       .fd_inputs = {0, 1},
       .family = Family::loss});
  // Every rank has all samples of the micro-batch, a few numbers, and the same loss.
  ops.push_back(
      {.name = "sequence_policy_loss",
       .doc = "inputs s[A], old[A], advantages[A], weights[A], lengths[A], scale: scale * sum_a "
              "weights[a] max(-r A, -clip(r) A), r = e^((s - old) / length), clipped to [1 - "
              "clip_low, 1 + clip_high] (arXiv 2507.18071, eq. 5 and 7); with grad=1 also ds",
       .infer = infer_sequence,
       .layout = {"*", ""},
       .work = work<30>,
       .grad = grad,
       .samples = samples_sequence,
       .accumulates = {0},
       .fd_inputs = {0},
       .family = Family::loss});
  ops.push_back(
      {.name = "value_loss",
       .doc = "inputs v[T,1], old[T], returns[T], weights[T], scale: scale / 2 * sum_t weights[t] "
              "max((v - R)^2, (clip(v, old - clip, old + clip) - R)^2), clip=0: (v - R)^2; with "
              "grad=1 also dv",
       .infer = infer_value,
       .layout = {"tu,t,t,t,.->.,tu|tu,t,t,t,.->.", "t"},
       .work = work<12>,
       .grad = grad,
       .samples = samples_value,
       .accumulates = {0},
       .fd_inputs = {0},
       .family = Family::loss});
}

}  // namespace hocket::ops::policy_loss

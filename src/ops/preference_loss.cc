// SPDX-License-Identifier: Apache-2.0
// Losses of preference tuning, from the log-probabilities of answers under the policy (s) and a
// reference (r). preference_loss compares the answers 2p and 2p + 1 of pair p, chosen and rejected,
// by d = s - r: sigmoid (DPO, Rafailov et al., NeurIPS 2023, eq. 7; with label smoothing eq. 3 of
// Mitchell's cDPO note), sigmoid_norm (the same per token), ipo (Azar et al., AISTATS 2024, eq. 17,
// per token as its authors have it) and hinge (Zhao et al., arXiv 2305.10425). kto_loss takes
// single answers with a side (Ethayarajh et al., ICML 2024, eq. 7): 1 desirable, -1 undesirable, 0
// none; z is an estimate of the divergence from the reference, the mean d of answers to other
// prompts, at least 0.
#include "ops/preference_terms.h"
#include "ops/rules.h"

namespace hocket::ops::preference_loss {
namespace {

void want_answers(std::string_view op, Types in, size_t vectors) {
  want_rank(op, in[0], 1);
  for (size_t i = 0; i < vectors; ++i) {
    want_dtype(op, in[i], DType::f64);
    want_same(op, in[i], in[0]);
  }
}

std::vector<TensorType> results(std::string_view op, const Attrs& attrs, Types in) {
  if (const double beta = attrs.f("beta"); !(beta > 0 && std::isfinite(beta))) {
    fail(op, "beta is {}; expected a positive number", beta);
  }
  want_scalar(op, in.back(), DType::f64);
  const TensorType loss{DType::f64, {1}};
  if (attrs.i("grad") == 0) return {loss};
  return {loss, in[0]};
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "preference_loss";
  want_inputs(kOp, in, 5);
  want_answers(kOp, in, 4);
  if (in[0].dims[0] % 2 != 0) {
    fail(kOp, "got {} answers; expected pairs", to_string(in[0]));
  }
  preference_terms(attrs.s("loss"));
  if (const double smoothing = attrs.f("label_smoothing"); !(smoothing >= 0 && smoothing < 0.5)) {
    fail(kOp, "label_smoothing is {}; expected 0 to below 0.5", smoothing);
  }
  return results(kOp, attrs, in);
}

std::vector<TensorType> infer_kto(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "kto_loss";
  want_inputs(kOp, in, 6);
  want_answers(kOp, in, 3);
  want_vector(kOp, in[3], DType::i32, in[0].dims[0], "number of sides");
  want_scalar(kOp, in[4], DType::f64);
  return results(kOp, attrs, in);
}

Work work(const Call& call) { return memory_bound(call, 20); }

void grad(GradContext& context) {
  if (context.node().attrs.i("grad") == 0) {
    fail(context.node().op, "grad=0 has no gradient; expected grad=1");
  }
  context.add_grad(0, context.node().out[1]);
}

Sample sample_of(const char* name, Attrs attrs, int64_t answers, const Fill& fourth, DType dtype) {
  const TensorType each{DType::f64, {answers}};
  return {name,
          std::move(attrs),
          {each, each, each, {dtype, {answers}}, {DType::f64, {1}}},
          {{.kind = Fill::Kind::normal, .scale = 3},
           {.kind = Fill::Kind::normal, .scale = 3},
           {.kind = Fill::Kind::uniform},
           fourth,
           {.kind = Fill::Kind::constant, .lo = 0.25}},
          {}};
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  const Fill lengths{.kind = Fill::Kind::uniform, .lo = 1, .hi = 9};
  for (const char* loss : {"sigmoid", "sigmoid_norm", "ipo", "hinge", "sigmoid:0.75,ipo:0.25"}) {
    for (double smoothing : {0.0, 0.2}) {
      if (smoothing > 0 && loss != std::string("sigmoid")) continue;
      const Attrs attrs{{"loss", std::string(loss)},
                        {"beta", 0.3},
                        {"label_smoothing", smoothing},
                        {"grad", int64_t{1}}};
      list.push_back(sample_of(loss, attrs, 6, lengths, DType::f64));
    }
  }
  list.push_back(list[0]);
  list.back().attrs.set("grad", int64_t{0});
  list.back().name = "loss only";
  return list;
}

std::vector<Sample> samples_kto() {
  const Attrs attrs{{"beta", 0.3}, {"grad", int64_t{1}}};
  const Fill sides{.kind = Fill::Kind::integers, .lo = -1, .hi = 1};
  const Fill desirable{.kind = Fill::Kind::integers, .lo = 1, .hi = 1};
  std::vector<Sample> list{sample_of("7 answers", attrs, 7, sides, DType::i32),
                           sample_of("1 answer", attrs, 1, desirable, DType::i32)};
  for (Sample& sample : list) {
    sample.types.insert(sample.types.begin() + 4, {DType::f64, {1}});
    sample.fills.insert(sample.fills.begin() + 4, {.kind = Fill::Kind::uniform});
  }
  list.push_back(list[0]);
  list.back().attrs.set("grad", int64_t{0});
  list.back().name = "loss only";
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  // Every rank has all answers of the micro-batch, a few numbers, and the same loss.
  ops.push_back({.name = "preference_loss",
                 .doc = "inputs s[A], r[A], weights[A], lengths[A], scale: scale * sum_p "
                        "weights[2p] f(d[2p] - d[2p+1]), d = s - r, per token for sigmoid_norm and "
                        "ipo; f: -log sigmoid(beta x) with label smoothing, (x - 1/(2 beta))^2, "
                        "max(0, 1 - beta x), or a weighted sum of these; with grad=1 also ds",
                 .infer = infer,
                 .layout = {"*", ""},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .accumulates = {0},
                 .fd_inputs = {0},
                 .family = Family::loss});
  ops.push_back({.name = "kto_loss",
                 .doc = "inputs s[A], r[A], weights[A], sides[A], z, scale: scale * sum_a "
                        "weights[a] (1 - sigmoid(beta sides[a] (d[a] - z))), d = s - r; with "
                        "grad=1 also ds",
                 .infer = infer_kto,
                 .layout = {"*", ""},
                 .work = work,
                 .grad = grad,
                 .samples = samples_kto,
                 .accumulates = {0},
                 .fd_inputs = {0},
                 .family = Family::loss});
}

}  // namespace hocket::ops::preference_loss

// SPDX-License-Identifier: Apache-2.0
// balance_loss (Switch Transformer, arXiv 2101.03961 eq. 4, top-k form of GShard): coef * E *
// sum_e f_e P_e with f_e the share of routed slots and P_e the mean probability of expert e, both
// over the whole global micro-batch: the counts say how many tokens that has, top_k slots each.
#include "ops/rules.h"

namespace hocket::ops::balance_loss {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("balance_loss", in, 2);
  want_rank("balance_loss", in[0], 1);
  want_float("balance_loss", in[0]);
  want_vector("balance_loss", in[1], DType::i64, in[0].dims[0], "number of counts");
  attrs.f("coef");
  attrs.i("top_k");
  return {{DType::f64, {1}}};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_inputs("balance_loss_bwd", in, 1);
  want_rank("balance_loss_bwd", in[0], 1);
  want_dtype("balance_loss_bwd", in[0], DType::i64);
  return {{graph::parse_dtype(attrs.s("dtype")), in[0].dims}};
}

Work work(const Call& call) { return memory_bound(call, 0); }
Work work_bwd(const Call& call) { return memory_bound(call, 1); }

void grad(GradContext& context) {
  Attrs attrs = context.node().attrs;
  attrs.set("dtype", std::string(to_string(context.tensor(context.node().in[0]).type.dtype)));
  context.add_grad(0, context.emit("balance_loss_bwd", attrs, {context.node().in[1]})[0]);
}

const Attrs kAttrs{{"coef", 0.1}, {"top_k", int64_t{2}}};
const Fill kCounts{.kind = Fill::Kind::integers, .lo = 0, .hi = 5};

}  // namespace

void add_to(std::vector<Op>& ops) {
  // The loss reads counts and summed probabilities of the whole global micro-batch: its layout
  // allows no split, so lowering sums both first. Counts have no gradient.
  ops.push_back({.name = "balance_loss",
                 .doc = "loss = coef * E * sum_e counts_e/(tokens*top_k) * psum_e/tokens, with "
                        "tokens = sum_e counts_e / top_k",
                 .infer = infer,
                 .layout = {"*", ""},
                 .work = work,
                 .grad = grad,
                 .samples =
                     [] {
                       return std::vector<Sample>{{"4 experts",
                                                   kAttrs,
                                                   {{DType::f64, {4}}, {DType::i64, {4}}},
                                                   {{.kind = Fill::Kind::uniform}, kCounts},
                                                   {}}};
                     },
                 .accumulates = {0},
                 .family = Family::routing});
  ops.push_back(
      {.name = "balance_loss_bwd",
       .doc = "dpsum_e = coef * E * counts_e/(tokens*top_k) / tokens",
       .infer = infer_bwd,
       .layout = {"*", ""},
       .work = work_bwd,
       .samples =
           [] {
             Attrs attrs = kAttrs;
             attrs.set("dtype", std::string("f64"));
             return std::vector<Sample>{{"4 experts", attrs, {{DType::i64, {4}}}, {kCounts}, {}}};
           },
       .family = Family::routing});
}

}  // namespace hocket::ops::balance_loss

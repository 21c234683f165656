// SPDX-License-Identifier: Apache-2.0
// adamw (Loshchilov & Hutter, arXiv 1711.05101), the formula of torch.optim.AdamW, in place.
// hyper = {lr, 1 - beta1^t, 1 - beta2^t} changes from step to step; coef is the clipping factor. A
// coef that is no number skips the step: all stays as it is.
// adamw_master is the same for parameters of fewer bits than their update needs (Micikevicius et
// al., arXiv 1710.03740, section 3.1): moments and the master weights w, which it updates, are of
// at least f32, as the gradient is unless it is short (grad_dtype); the parameter becomes w
// rounded.
#include "ops/rules.h"

namespace hocket::ops::adamw {
namespace {

void want_settings(std::string_view op, const Attrs& attrs, const TensorType& coef,
                   const TensorType& hyper) {
  want_scalar(op, coef, DType::f64);
  if (hyper.dtype != DType::f64 || hyper.dims != Dims{3}) {
    fail(op, "hyper is {}; expected f64[3]", to_string(hyper));
  }
  for (const char* key : {"beta1", "beta2", "eps", "weight_decay"}) {
    attrs.f(key);
  }
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("adamw", in, 6);
  want_float("adamw", in[0]);
  for (size_t i = 1; i < 4; ++i) {
    want_same("adamw", in[i], in[0]);
  }
  want_settings("adamw", attrs, in[4], in[5]);
  return {in[0], in[2], in[3]};
}

std::vector<TensorType> infer_master(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "adamw_master";
  want_inputs(kOp, in, 7);
  want_float(kOp, in[0]);
  want_same(kOp, in[1], {grad_dtype(attrs, in[0].dtype), in[0].dims});
  for (size_t i = 2; i < 5; ++i) {
    want_same(kOp, in[i], {sum_dtype(in[0].dtype), in[0].dims});
  }
  want_settings(kOp, attrs, in[5], in[6]);
  return {in[0], in[2], in[3], in[4]};
}

Work work(const Call& call) { return memory_bound(call, 12); }
/// Work with master weights: the parameter itself is written, not read.
Work work_master(const Call& call) {
  Work work = memory_bound(call, 13);
  work.bytes -= call.in[0].bytes();
  return work;
}

const Attrs kAttrs{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
const Fill kPositive{.kind = Fill::Kind::uniform, .lo = 0.1, .hi = 1};
const std::vector<Dims> kShapes{{6, 4}, {8}, {4, 2, 4}, {2, 2, 2, 4}};

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Dims& dims : kShapes) {
    const TensorType type{DType::f64, dims};
    list.push_back({to_string(type),
                    kAttrs,
                    {type, type, type, type, {DType::f64, {1}}, {DType::f64, {3}}},
                    {{}, {}, {}, kPositive, kPositive, kPositive},
                    {}});
  }
  return list;
}
std::vector<Sample> samples_master() {
  std::vector<Sample> list;
  for (const Dims& dims : kShapes) {
    const TensorType type{DType::f64, dims};
    list.push_back({to_string(type),
                    kAttrs,
                    {type, type, type, type, type, {DType::f64, {1}}, {DType::f64, {3}}},
                    {{}, {}, {}, kPositive, {}, kPositive, kPositive},
                    {}});
  }
  list.push_back(with_short_gradient(list[0]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "adamw",
                 .doc = "g*=coef; p*=1-lr*wd; m=b1*m+(1-b1)*g; v=b2*v+(1-b2)*g^2; "
                        "p-=lr*(m/c1)/(sqrt(v/c2)+eps); nothing if coef is NaN",
                 .infer = infer,
                 .layout = {.notation = "a,a,a,a,.,x->a,a,a|ab,ab,ab,ab,.,x->ab,ab,ab|"
                                        "abc,abc,abc,abc,.,x->abc,abc,abc|"
                                        "abcd,abcd,abcd,abcd,.,x->abcd,abcd,abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work,
                 .samples = samples,
                 .inplace = {{0, 0}, {2, 1}, {3, 2}},
                 .family = Family::optimizer});
  ops.push_back({.name = "adamw_master",
                 .doc = "w, m and v as adamw updates p, m and v; p = w in the type of p",
                 .infer = infer_master,
                 .layout = {.notation = "a,a,a,a,a,.,x->a,a,a,a|ab,ab,ab,ab,ab,.,x->ab,ab,ab,ab|"
                                        "abc,abc,abc,abc,abc,.,x->abc,abc,abc,abc|"
                                        "abcd,abcd,abcd,abcd,abcd,.,x->abcd,abcd,abcd,abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work_master,
                 .samples = samples_master,
                 .inplace = {{0, 0}, {2, 1}, {3, 2}, {4, 3}},
                 .family = Family::optimizer});
}

}  // namespace hocket::ops::adamw

// SPDX-License-Identifier: Apache-2.0
// adamw (Loshchilov & Hutter, arXiv 1711.05101), the formula of torch.optim.AdamW, in place.
// hyper = {lr, 1 - beta1^t, 1 - beta2^t} changes from step to step; coef is the clipping factor.
#include "ops/rules.h"

namespace hocket::ops {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("adamw", in, 6);
  want_float("adamw", in[0]);
  for (size_t i = 1; i < 4; ++i) {
    want_same("adamw", in[i], in[0]);
  }
  want_scalar("adamw", in[4], DType::f64);
  if (in[5].dtype != DType::f64 || in[5].dims != Dims{3}) {
    fail("adamw", "hyper is {}; expected f64[3]", to_string(in[5]));
  }
  for (const char* key : {"beta1", "beta2", "eps", "weight_decay"}) {
    attrs.f(key);
  }
  return {in[0], in[2], in[3]};
}

Work work(const Call& call) { return memory_bound(call, 12); }

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (Dims dims : std::vector<Dims>{{6, 4}, {8}, {4, 2, 4}, {2, 2, 2, 4}}) {
    TensorType type{DType::f64, dims};
    Fill positive{.kind = Fill::Kind::uniform, .lo = 0.1, .hi = 1};
    list.push_back({to_string(type),
                    {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}},
                    {type, type, type, type, {DType::f64, {1}}, {DType::f64, {3}}},
                    {{}, {}, {}, positive, positive, positive},
                    {}});
  }
  return list;
}

}  // namespace

void register_adamw(std::vector<Op>& ops) {
  ops.push_back({.name = "adamw",
                 .doc = "g*=coef; p*=1-lr*wd; m=b1*m+(1-b1)*g; v=b2*v+(1-b2)*g^2; "
                        "p-=lr*(m/c1)/(sqrt(v/c2)+eps)",
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
}

}  // namespace hocket::ops

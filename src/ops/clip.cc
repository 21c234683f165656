// SPDX-License-Identifier: Apache-2.0
// sumsq and clip_coef: the global gradient norm. Per-tensor sums in fp64, combined in input order
// (parameters by name), so that the norm does not depend on the plan's placement.
#include "ops/rules.h"

namespace hocket::ops {
namespace {

std::vector<TensorType> infer_sumsq(const Attrs&, Types in) {
  want_inputs("sumsq", in, 1);
  want_float("sumsq", in[0]);
  if (in[0].dims.empty() || in[0].dims.size() > 4)
    fail("sumsq", "got {}; expected rank 1 to 4", to_string(in[0]));
  return {{DType::f64, {1}}};
}
Cost cost_sumsq(const Attrs& a, Types in, Types out) {
  Cost c = memory_bound("sumsq", a, in, out, 0);
  c.flops = 2 * static_cast<double>(in[0].numel());
  return c;
}

std::vector<TensorType> infer_clip(const Attrs& attrs, Types in) {
  attrs.f("max_norm");
  if (in.empty()) fail("clip_coef", "no gradients");
  for (const TensorType& t : in) want_scalar("clip_coef", t, DType::f64);
  return {{DType::f64, {1}}, {DType::f64, {1}}};
}
Cost cost_clip(const Attrs& a, Types in, Types out) {
  return memory_bound("clip_coef", a, in, out, 1);
}

}  // namespace

void register_clip(std::vector<Op>& ops) {
  ops.push_back({.name = "sumsq",
                 .doc = "s = sum of g^2, in fp64",
                 .infer = infer_sumsq,
                 .layout = {"a->.|ab->.|abc->.|abcd->.", "abcd"},
                 .cost = cost_sumsq,
                 .samples = [] {
                   return std::vector<Sample>{{"[6,4]", {}, {{DType::f64, {6, 4}}}, {{}}, {}},
                                              {"[8]", {}, {{DType::f64, {8}}}, {{}}, {}},
                                              {"[4,2,6]", {}, {{DType::f64, {4, 2, 6}}}, {{}}, {}},
                                              {"[2,2,4,2]", {}, {{DType::f64, {2, 2, 4, 2}}}, {{}}, {}}};
                 }});
  ops.push_back({.name = "clip_coef",
                 .doc = "norm = sqrt(sum_i s_i); coef = min(1, max_norm/(norm + 1e-6)), 1 if "
                        "max_norm <= 0 (torch.nn.utils.clip_grad_norm_)",
                 .infer = infer_clip,
                 .layout = {"*", ""},
                 .cost = cost_clip,
                 .samples = [] {
                   TensorType s{DType::f64, {1}};
                   Fill f{.kind = Fill::Kind::uniform, .lo = 0.5, .hi = 3};
                   return std::vector<Sample>{
                       {"three", {{"max_norm", 1.0}}, {s, s, s}, {f, f, f}, {}}};
                 }});
}

}  // namespace hocket::ops

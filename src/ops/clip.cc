// SPDX-License-Identifier: Apache-2.0
// sumsq and clip_coef: the global gradient norm. Per-tensor sums in fp64, combined in input order
// (parameters by name), so that the norm does not depend on the plan's placement.
#include "ops/rules.h"

namespace hocket::ops::clip {
namespace {

std::vector<TensorType> infer_sumsq(const Attrs&, Types in) {
  want_inputs("sumsq", in, 1);
  want_float("sumsq", in[0]);
  if (in[0].dims.empty() || in[0].dims.size() > 4) {
    fail("sumsq", "got {}; expected rank 1 to 4", to_string(in[0]));
  }
  return {{DType::f64, {1}}};
}
Work work_sumsq(const Call& call) {
  return {2 * static_cast<double>(call.in[0].numel()), total_bytes(call.in, call.out)};
}
/// A sum per block.
int64_t workspace_sumsq(const Call& call) { return ceil_div(call.in[0].numel(), kSumBlock) * 8; }

std::vector<TensorType> infer_clip(const Attrs& attrs, Types in) {
  attrs.f("max_norm");
  if (attrs.has("skip_above")) {
    attrs.f("skip_above");
  }
  if (in.empty()) fail("clip_coef", "no gradients");
  for (const TensorType& type : in) {
    want_scalar("clip_coef", type, DType::f64);
  }
  return {{DType::f64, {1}}, {DType::f64, {1}}};
}
Work work_clip(const Call& call) { return memory_bound(call, 1); }

/// Defines the coefficient of several sums by that of their total; one sum: primitive.
std::vector<int> define_clip(Definition& graph, const Attrs& attrs, std::span<const int> in) {
  if (in.size() == 1) return {};
  int sum = in[0];
  for (int next : in.subspan(1)) {
    sum = graph.apply("add", {}, {sum, next})[0];
  }
  return graph.apply("clip_coef", attrs, {sum});
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  // The global gradient norm in two steps: a sum of squares per parameter, which ranks can add up,
  // and the coefficient from all of them.
  ops.push_back(
      {.name = "sumsq",
       .doc = "s = sum of g^2, in fp64",
       .infer = infer_sumsq,
       .layout = {.notation = "a->.|ab->.|abc->.|abcd->.", .split = "abcd", .keeps_zero = true},
       .work = work_sumsq,
       .samples =
           [] {
             return std::vector<Sample>{{"[6,4]", {}, {{DType::f64, {6, 4}}}, {{}}, {}},
                                        {"[8]", {}, {{DType::f64, {8}}}, {{}}, {}},
                                        {"[4,2,6]", {}, {{DType::f64, {4, 2, 6}}}, {{}}, {}},
                                        {"[2,2,4,2]", {}, {{DType::f64, {2, 2, 4, 2}}}, {{}}, {}}};
           },
       .workspace = workspace_sumsq,
       .family = Family::optimizer});
  ops.push_back(
      {.name = "clip_coef",
       .doc = "norm = sqrt(sum_i s_i); coef = min(1, max_norm/(norm + 1e-6)), 1 if "
              "max_norm <= 0 (torch.nn.utils.clip_grad_norm_); NaN, which skips the step, if norm "
              "is not finite or above skip_above",
       .infer = infer_clip,
       .layout = {"*", ""},
       .work = work_clip,
       .samples =
           [] {
             TensorType type{DType::f64, {1}};
             Fill fill{.kind = Fill::Kind::uniform, .lo = 0.5, .hi = 3};
             return std::vector<Sample>{
                 {"three", {{"max_norm", 1.0}}, {type, type, type}, {fill, fill, fill}, {}},
                 {"one", {{"max_norm", 1.0}}, {type}, {fill}, {}}};
           },
       .family = Family::optimizer,
       .define = define_clip,
       .defined = Defined::expands});
}

}  // namespace hocket::ops::clip

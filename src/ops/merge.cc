// SPDX-License-Identifier: Apache-2.0
// softmax_merge and maximum: merging partial results (Monoid), as the sum op does for partial sums.
// They are added after differentiation, and have no gradient.
#include "ops/rules.h"

namespace hocket::ops::merge {
namespace {

std::vector<TensorType> infer_softmax(const Attrs&, Types in) {
  constexpr const char* kOp = "softmax_merge";
  want_inputs(kOp, in, 4);
  want_rank(kOp, in[0], 3);
  want_float(kOp, in[0]);
  want_same(kOp, in[1], {sum_dtype(in[0].dtype), {in[0].dims[0], in[0].dims[1]}});
  want_same(kOp, in[2], in[0]);
  want_same(kOp, in[3], in[1]);
  return {in[0], in[1]};
}
Work work_softmax(const Call& call) { return memory_bound(call, 3); }

std::vector<TensorType> infer_max(const Attrs&, Types in) {
  want_inputs("maximum", in, 2);
  want_float("maximum", in[0]);
  want_same("maximum", in[0], in[1]);
  return {in[0]};
}
Work work_max(const Call& call) { return memory_bound(call, 1); }

std::vector<Sample> samples_softmax() {
  const TensorType o{DType::f64, {6, 2, 4}};
  const TensorType lse{DType::f64, {6, 2}};
  return {{to_string(o), {}, {o, lse, o, lse}, {{}, {}, {}, {.scale = 3}}, {}}};
}
std::vector<Sample> samples_max() {
  std::vector<Sample> list;
  for (const Dims& dims : std::vector<Dims>{{8}, {6, 4}, {4, 2, 4}, {2, 2, 2, 4}}) {
    const TensorType type{DType::f64, dims};
    list.push_back({to_string(type), {}, {type, type}, {{}, {}}, {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "softmax_merge",
                 .doc =
                     "lse = log(e^lse1 + e^lse2), o = o1 e^(lse1 - lse) + o2 e^(lse2 - lse), for "
                     "o[T,H,d], lse[T,H]; o = 0, lse = -inf is the identity",
                 .infer = infer_softmax,
                 .layout = {"thd,th,thd,th->thd,th", "th"},
                 .work = work_softmax,
                 .samples = samples_softmax,
                 .may_overwrite = {{0, 0}, {1, 1}},
                 .family = Family::attention,
                 .meaning = Meaning::merge_softmax});
  ops.push_back({.name = "maximum",
                 .doc = "c = max(a, b)",
                 .infer = infer_max,
                 .layout = {"a,a->a|ab,ab->ab|abc,abc->abc|abcd,abcd->abcd", "abcd"},
                 .work = work_max,
                 .samples = samples_max,
                 .may_overwrite = {{0, 0}},
                 .meaning = Meaning::merge_max});
}

}  // namespace hocket::ops::merge

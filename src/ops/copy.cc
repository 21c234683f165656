// SPDX-License-Identifier: Apache-2.0
// copy, used by lowering where an in-place update would destroy a value that is still needed, and
// zero, the empty sum.
#include "ops/rules.h"

namespace hocket::ops::copy {
namespace {

std::vector<TensorType> infer(const Attrs&, Types in) {
  want_inputs("copy", in, 1);
  if (in[0].dims.empty() || in[0].dims.size() > 4) {
    fail("copy", "got {}; expected rank 1 to 4", to_string(in[0]));
  }
  return {in[0]};
}
std::vector<TensorType> infer_zero(const Attrs& attrs, Types in) {
  want_inputs("zero", in, 0);
  return {graph::parse_tensor_type(attrs.s("type"))};
}
Work work(const Call& call) { return memory_bound(call, 0); }

}  // namespace

void add_to(std::vector<Op>& ops) {
  // Two ops that lowering puts in, and that mean nothing to the check: the same value, and no
  // value.
  ops.push_back({.name = "copy",
                 .doc = "y = x",
                 .infer = infer,
                 .layout = {"a->a|ab->ab|abc->abc|abcd->abcd", "abcd", "1"},
                 .work = work,
                 .samples =
                     [] {
                       std::vector<Sample> list;
                       for (Dims dims : std::vector<Dims>{{8}, {6, 4}, {4, 2, 4}, {2, 2, 2, 4}}) {
                         TensorType type{DType::f64, dims};
                         list.push_back({to_string(type), {}, {type}, {{}}, {}});
                       }
                       return list;
                     },
                 .family = Family::moving,
                 .meaning = Meaning::identity,
                 .follows_strides = true,
                 .takes_any_type = true});
  ops.push_back(
      {.name = "zero",
       .doc = "y = 0",
       .infer = infer_zero,
       .layout = {"*", ""},
       .work = work,
       .samples =
           [] {
             return std::vector<Sample>{{"[6,4]", {{"type", std::string("f64[6,4]")}}, {}, {}, {}}};
           },
       .family = Family::moving,
       .meaning = Meaning::empty,
       .takes_any_type = true});
}

}  // namespace hocket::ops::copy

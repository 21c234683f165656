// SPDX-License-Identifier: Apache-2.0
// add: c = a + b, the residual connection and the sum of gradients; of numbers of rows (i64), too,
// where a program sums them in steps.
#include "ops/rules.h"

namespace hocket::ops::add {
namespace {

std::vector<TensorType> infer(const Attrs&, Types in) {
  want_inputs("add", in, 2);
  if (in[0].dtype != graph::DType::i64) {
    want_float("add", in[0]);
  }
  want_same("add", in[0], in[1]);
  return {in[0]};
}
Work work(const Call& call) { return memory_bound(call, 1); }

void grad(GradContext& context) {
  for (int i : {0, 1}) {
    if (context.needs(i)) {
      context.add_grad(i, context.grad_out(0));
    }
  }
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "add",
                 .doc = "c = a + b",
                 .infer = infer,
                 .layout = {"a,a->a|ab,ab->ab|abc,abc->abc|abcd,abcd->abcd", "abcd", "", true},
                 .work = work,
                 .grad = grad,
                 .samples =
                     [] {
                       std::vector<Sample> list;
                       for (Dims dims : std::vector<Dims>{{8}, {6, 4}, {4, 2, 4}, {2, 2, 2, 4}}) {
                         TensorType type{DType::f64, dims};
                         list.push_back({to_string(type), {}, {type, type}, {{}, {}}, {}});
                       }
                       return list;
                     },
                 .may_overwrite = {{0, 0}},
                 .meaning = Meaning::sum});
}

}  // namespace hocket::ops::add

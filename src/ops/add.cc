// SPDX-License-Identifier: Apache-2.0
// add: c = a + b, the residual connection and the sum of gradients.
#include "ops/rules.h"

namespace hocket::ops {
namespace {

std::vector<TensorType> infer(const Attrs&, Types in) {
  want_inputs("add", in, 2);
  want_float("add", in[0]);
  want_same("add", in[0], in[1]);
  return {in[0]};
}
Work work(const Call& call) { return memory_bound(call, 1); }

void grad(GradContext& g) {
  for (int i : {0, 1}) {
    if (g.needs(i)) {
      g.add_grad(i, g.grad_out(0));
    }
  }
}

}  // namespace

void register_add(std::vector<Op>& ops) {
  ops.push_back({.name = "add",
                 .doc = "c = a + b",
                 .infer = infer,
                 .layout = {"a,a->a|ab,ab->ab|abc,abc->abc|abcd,abcd->abcd", "abcd", "", true},
                 .work = work,
                 .grad = grad,
                 .samples =
                     [] {
                       std::vector<Sample> list;
                       for (Dims d : std::vector<Dims>{{8}, {6, 4}, {4, 2, 4}, {2, 2, 2, 4}}) {
                         TensorType t{DType::f64, d};
                         list.push_back({to_string(t), {}, {t, t}, {{}, {}}, {}});
                       }
                       return list;
                     },
                 .meaning = Meaning::sum});
}

}  // namespace hocket::ops

// SPDX-License-Identifier: Apache-2.0
// scale: y = factor * x, such as a model's multiplier of its embeddings, residuals or logits. The
// gradient is the op itself on dy.
#include <cmath>

#include "ops/rules.h"

namespace hocket::ops::scale {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("scale", in, 1);
  want_float("scale", in[0]);
  if (in[0].routed() || in[0].dims.empty() || in[0].dims.size() > 4) {
    fail("scale", "got {}; expected a dense tensor of rank 1 to 4", to_string(in[0]));
  }
  if (const double factor = attrs.f("factor"); !std::isfinite(factor)) {
    fail("scale", "factor is {}; expected a finite number", factor);
  }
  return {in[0]};
}

Work work(const Call& call) { return memory_bound(call, 1); }

void grad(GradContext& context) {
  context.add_grad(0, context.emit("scale", context.node().attrs, {context.grad_out(0)})[0]);
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Dims& dims : std::vector<Dims>{{8}, {6, 4}, {4, 2, 4}, {2, 2, 2, 4}}) {
    const TensorType x{DType::f64, dims};
    list.push_back({to_string(x), {{"factor", -2.5}}, {x}, {{}}, {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "scale",
                 .doc = "y = factor * x",
                 .infer = infer,
                 .layout = {"a->a|ab->ab|abc->abc|abcd->abcd", "abcd", "1"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .may_overwrite = {{0, 0}}});
}

}  // namespace hocket::ops::scale

// SPDX-License-Identifier: Apache-2.0
// softcap: y = cap * tanh(x / cap), a smooth limit of logits (Gemma 2, arXiv 2408.00118). Attention
// and linear_cross_entropy have it inside, as attribute `softcap`.
#include <cmath>

#include "ops/rules.h"

namespace hocket::ops::softcap {
namespace {

void want_capped(std::string_view op, const Attrs& attrs, const TensorType& x) {
  want_float(op, x);
  if (x.routed() || x.dims.empty() || x.dims.size() > 3) {
    fail(op, "got {}; expected a dense tensor of rank 1 to 3", to_string(x));
  }
  if (const double cap = attrs.f("cap"); !(cap > 0 && std::isfinite(cap))) {
    fail(op, "cap is {}; expected a positive number", cap);
  }
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("softcap", in, 1);
  want_capped("softcap", attrs, in[0]);
  return {in[0]};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_inputs("softcap_bwd", in, 2);
  want_capped("softcap_bwd", attrs, in[1]);
  want_same("softcap_bwd", in[0], in[1]);
  return {in[1]};
}

Work work(const Call& call) { return memory_bound(call, 10); }

void grad(GradContext& context) {
  const auto& node = context.node();
  context.add_grad(0,
                   context.emit("softcap_bwd", node.attrs, {context.grad_out(0), node.in[0]})[0]);
}

/// Samples with this number of inputs of one type.
template <size_t inputs>
std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Dims& dims : std::vector<Dims>{{8}, {6, 12}, {4, 2, 6}}) {
    const TensorType x{DType::f64, dims};
    std::vector<Fill> fills(inputs);
    fills.back().scale = 3;
    list.push_back({to_string(x), {{"cap", 2.5}}, std::vector(inputs, x), fills, {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "softcap",
                 .doc = "y = cap * tanh(x / cap)",
                 .infer = infer,
                 .layout = {"a->a|ab->ab|abc->abc", "abc"},
                 .work = work,
                 .grad = grad,
                 .samples = samples<1>,
                 .may_overwrite = {{0, 0}},
                 .family = Family::loss});
  ops.push_back({.name = "softcap_bwd",
                 .doc = "dx = dy * (1 - tanh(x / cap)^2)",
                 .infer = infer_bwd,
                 .layout = {"a,a->a|ab,ab->ab|abc,abc->abc", "abc", "1"},
                 .work = work,
                 .samples = samples<2>,
                 .may_overwrite = {{0, 0}},
                 .family = Family::loss});
}

}  // namespace hocket::ops::softcap

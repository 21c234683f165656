// SPDX-License-Identifier: Apache-2.0
// activation: y = f(x) element by element, f by attribute `kind`: gelu (Hendrycks & Gimpel, arXiv
// 1606.08415), gelu_tanh (its approximation by tanh), silu, relu, or relu2, the square of relu (So
// et al., arXiv 2109.08668). On routed rows as well, with the counts per expert as the last input.
#include "base/text.h"
#include "ops/rules.h"

namespace hocket::ops::activation {
namespace {

constexpr const char* kKinds[] = {"gelu", "gelu_tanh", "silu", "relu", "relu2"};

void want_kind(std::string_view op, const Attrs& attrs) {
  const std::string& kind = attrs.s("kind");
  if (std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds)) {
    fail(op, "kind is {}; expected gelu, gelu_tanh, silu, relu or relu2", quote(kind));
  }
}

/// Expects rows at input `at`, and behind it the counts of routed ones, and nothing else.
void want_rows(std::string_view op, Types in, size_t at) {
  if (in.size() <= at) {
    want_inputs(op, in, at + 1);
  }
  const TensorType& x = in[at];
  want_float(op, x);
  if (!x.routed()) {
    want_inputs(op, in, at + 1);
    if (x.dims.size() < 2 || x.dims.size() > 3) {
      fail(op, "got {}; expected [T,F] or [T,H,d]", to_string(x));
    }
    return;
  }
  want_inputs(op, in, at + 2);
  if (x.dims.size() != 3) fail(op, "got {}; expected routed rows [E,T,F]@k", to_string(x));
  want_vector(op, in[at + 1], DType::i64, x.dims[0], "number of counts");
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_kind("activation", attrs);
  want_rows("activation", in, 0);
  return {in[0]};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_kind("activation_bwd", attrs);
  want_rows("activation_bwd", in, 1);
  want_same("activation_bwd", in[0], in[1]);
  return {in[1]};
}

Work work(const Call& call) { return memory_bound(call, 8); }

void grad(GradContext& context) {
  const auto& node = context.node();
  std::vector<TensorId> in{context.grad_out(0)};
  in.insert(in.end(), node.in.begin(), node.in.end());
  context.add_grad(0, context.emit("activation_bwd", node.attrs, in)[0]);
}

/// Samples with this number of operands of one type, on dense and on routed rows.
template <int operands>
std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const std::string kind : kKinds) {
    for (const Dims& dims : std::vector<Dims>{{8, 6}, {4, 2, 4}}) {
      const TensorType x{DType::f64, dims};
      list.push_back({kind + " " + to_string(x),
                      {{"kind", kind}},
                      std::vector(operands, x),
                      std::vector(operands, Fill{.scale = 2}),
                      {}});
    }
    const TensorType x{DType::f64, {4, 6, 4}, 2};
    Sample sample{kind + " " + to_string(x), {{"kind", kind}}, std::vector(operands, x), {}, {}};
    sample.types.push_back({DType::i64, {4}});
    sample.types.push_back({DType::i32, {6, 2}});
    sample.fills.assign(operands, Fill{.scale = 2});
    sample.fills.push_back({.kind = Fill::Kind::from_op});
    sample.fills.push_back({.kind = Fill::Kind::routes, .hi = 3});
    sample.chain = {{"route_plan", {{"num_experts", int64_t{4}}}, {operands + 1}, {operands, -1}}};
    sample.num_inputs = operands + 1;
    list.push_back(sample);
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "activation",
                 .doc = "y = f(x), `kind` of f: gelu, gelu_tanh, silu, relu, relu2",
                 .infer = infer,
                 .layout = {"tf->tf|thf->thf|etf,e/t->etf", "tfhe"},
                 .work = work,
                 .grad = grad,
                 .samples = samples<1>,
                 .may_overwrite = {{0, 0}},
                 .cheap_to_repeat = true});
  ops.push_back({.name = "activation_bwd",
                 .doc = "dx = dy * f'(x)",
                 .infer = infer_bwd,
                 .layout = {"tf,tf->tf|thf,thf->thf|etf,etf,e/t->etf", "tfhe", "1"},
                 .work = work,
                 .samples = samples<2>,
                 .may_overwrite = {{0, 0}}});
}

}  // namespace hocket::ops::activation

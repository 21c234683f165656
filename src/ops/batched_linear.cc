// SPDX-License-Identifier: Apache-2.0
// batched_linear: a linear layer per part of the features, y[T,g,f] = x[T,g,:] W[g,f,:]^T, such as
// the gate and the up half of an MLP. dX and dW are ops of their own, as those of linear.
#include "ops/rules.h"

namespace hocket::ops::batched_linear {
namespace {

void want_parts(std::string_view op, const TensorType& left, const TensorType& right) {
  want_rank(op, left, 3);
  want_rank(op, right, 3);
  want_float(op, left);
  want_dtype(op, right, left.dtype);
}

std::vector<TensorType> infer(const Attrs&, Types in) {
  want_inputs("batched_linear", in, 2);
  want_parts("batched_linear", in[0], in[1]);
  const Dims& x = in[0].dims;
  const Dims& w = in[1].dims;
  want_equal("batched_linear", "number of parts of W", w[0], x[1]);
  want_equal("batched_linear", "W's input width", w[2], x[2]);
  return {{in[0].dtype, {x[0], x[1], w[1]}}};
}

std::vector<TensorType> infer_dx(const Attrs&, Types in) {
  want_inputs("batched_linear_dx", in, 2);
  want_parts("batched_linear_dx", in[0], in[1]);
  const Dims& dy = in[0].dims;
  const Dims& w = in[1].dims;
  want_equal("batched_linear_dx", "number of parts of W", w[0], dy[1]);
  want_equal("batched_linear_dx", "W's output width", w[1], dy[2]);
  return {{in[0].dtype, {dy[0], dy[1], w[2]}}};
}

std::vector<TensorType> infer_dw(const Attrs& attrs, Types in) {
  want_inputs("batched_linear_dw", in, 2);
  want_parts("batched_linear_dw", in[0], in[1]);
  const Dims& dy = in[0].dims;
  const Dims& x = in[1].dims;
  want_equal("batched_linear_dw", "x's tokens", x[0], dy[0]);
  want_equal("batched_linear_dw", "number of parts of x", x[1], dy[1]);
  return {{grad_dtype(attrs, in[0].dtype), {dy[1], dy[2], x[2]}}};
}

/// A multiply-add per element of `rows`, [T,g,f], and index of the dim that its part is multiplied
/// with.
Work work_of(const Call& call, const TensorType& rows, int64_t other) {
  return {2 * static_cast<double>(rows.numel()) * static_cast<double>(other),
          total_bytes(call.in, call.out)};
}
Work work(const Call& call) { return work_of(call, call.in[0], call.out[0].dims[2]); }
Work work_dx(const Call& call) { return work_of(call, call.in[0], call.out[0].dims[2]); }
Work work_dw(const Call& call) { return work_of(call, call.in[0], call.in[1].dims[2]); }

int64_t workspace(const Call& call) {
  return product_scratch(call.attrs, call.out[0].dims[2], call.in[0].dims[2], element(call.in[0]));
}
/// Workspace of dW, whose inner dimension is the tokens.
int64_t workspace_dw(const Call& call) {
  return product_scratch(call.attrs, call.in[1].dims[2], call.in[0].dims[0], element(call.in[0]));
}

double model_flops(const Attrs&, Types in, double) {
  return 2 * static_cast<double>(in[0].dims[0]) * static_cast<double>(in[1].numel());
}

void grad(GradContext& context) {
  const TensorId dy = context.grad_out(0);
  const TensorId x = context.node().in[0];
  const TensorId weight = context.node().in[1];
  if (context.needs(0)) {
    context.emit_grad("batched_linear_dx", {}, {dy, weight}, 0);
  }
  if (context.needs(1)) {
    context.emit_grad("batched_linear_dw", {}, {dy, x}, 1);
  }
}

std::vector<Sample> two_inputs(const std::vector<std::pair<Dims, Dims>>& shapes) {
  std::vector<Sample> list;
  for (const auto& [left_dims, right_dims] : shapes) {
    const TensorType left{DType::f64, left_dims};
    const TensorType right{DType::f64, right_dims};
    list.push_back({to_string(left) + " " + to_string(right), {}, {left, right}, {{}, {}}, {}});
  }
  return list;
}
std::vector<Sample> samples() {
  return two_inputs({{{12, 2, 3}, {2, 5, 3}}, {{4, 2, 4}, {2, 6, 4}}, {{1, 1, 1}, {1, 1, 1}}});
}
std::vector<Sample> samples_dx() {
  return two_inputs({{{12, 2, 5}, {2, 5, 3}}, {{4, 2, 6}, {2, 6, 4}}});
}
std::vector<Sample> samples_dw() {
  std::vector<Sample> list = two_inputs({{{12, 2, 5}, {12, 2, 3}}, {{4, 2, 6}, {4, 2, 4}}});
  list.push_back(with_short_gradient(list[0]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "batched_linear",
                 .doc = "y[T,g,f] = x[T,g,:] W[g,f,:]^T",
                 .infer = infer,
                 .layout = {"tgk,gfk->tgf", "tfkg", "11"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .accumulates = {0},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::products,
                 .model_flops = model_flops});
  ops.push_back({.name = "batched_linear_dx",
                 .doc = "dx[T,g,:] = dy[T,g,f] W[g,f,:]",
                 .infer = infer_dx,
                 .layout = {"tgf,gfk->tgk", "tfkg", "11"},
                 .work = work_dx,
                 .samples = samples_dx,
                 .accumulates = {0},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::products});
  ops.push_back({.name = "batched_linear_dw",
                 .doc = "dW[g,f,:] = dy[T,g,f]^T x[T,g,:]",
                 .infer = infer_dw,
                 .layout = {"tgf,tgk->gfk", "tfkg", "11"},
                 .work = work_dw,
                 .samples = samples_dw,
                 .accumulates = {0},
                 .workspace = workspace_dw,
                 .cost_class = CostClass::matmul,
                 .family = Family::products});
}

}  // namespace hocket::ops::batched_linear

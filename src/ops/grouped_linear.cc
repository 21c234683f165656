// SPDX-License-Identifier: Apache-2.0
// grouped_linear: a linear layer per expert on the rows routed to it. Logically
// y[e,t,o..] = x[e,t,:] W[e,o..,:]^T, so splitting by expert or by token are ordinary layouts.
#include "ops/rules.h"

namespace hocket::ops::grouped_linear {
namespace {

void want_routed(std::string_view op, const TensorType& type) {
  if (!type.routed() || type.dims.size() < 3) {
    fail(op, "got {}; expected routed rows [E,T,F..]@k", to_string(type));
  }
  want_float(op, type);
}
void want_counts(std::string_view op, const TensorType& counts, const Dim& experts) {
  want_vector(op, counts, DType::i64, experts, "number of counts");
}

std::vector<TensorType> infer(const Attrs&, Types in) {
  want_inputs("grouped_linear", in, 3);
  want_routed("grouped_linear", in[0]);
  want_dtype("grouped_linear", in[1], in[0].dtype);
  const Dims& x = in[0].dims;
  const Dims& w = in[1].dims;
  if (x.size() != 3 || w.size() < 3 || w.size() > 4) {
    fail("grouped_linear", "got x {} and W {}", to_string(in[0]), to_string(in[1]));
  }
  want_equal("grouped_linear", "number of experts in W", w[0], x[0]);
  want_counts("grouped_linear", in[2], x[0]);
  want_equal("grouped_linear", "W's input width", w.back(), x[2]);
  TensorType type{in[0].dtype, {x[0], x[1]}, in[0].top_k};
  type.dims.insert(type.dims.end(), w.begin() + 1, w.end() - 1);
  return {type};
}

std::vector<TensorType> infer_dx(const Attrs&, Types in) {
  want_inputs("grouped_linear_dx", in, 3);
  want_routed("grouped_linear_dx", in[0]);
  want_dtype("grouped_linear_dx", in[1], in[0].dtype);
  const Dims& dy = in[0].dims;
  const Dims& w = in[1].dims;
  want_counts("grouped_linear_dx", in[2], dy[0]);
  if (dy.size() > 4 || w.size() != dy.size()) {
    fail("grouped_linear_dx", "got dy {} and W {}", to_string(in[0]), to_string(in[1]));
  }
  want_equal("grouped_linear_dx", "number of experts in W", w[0], dy[0]);
  for (size_t i = 2; i < dy.size(); ++i) {
    want_equal("grouped_linear_dx", "W's output width", w[i - 1], dy[i]);
  }
  return {{in[0].dtype, {dy[0], dy[1], w.back()}, in[0].top_k}};
}

std::vector<TensorType> infer_dw(const Attrs& attrs, Types in) {
  want_inputs("grouped_linear_dw", in, 3);
  want_routed("grouped_linear_dw", in[0]);
  want_routed("grouped_linear_dw", in[1]);
  want_dtype("grouped_linear_dw", in[1], in[0].dtype);
  if (in[0].dims.size() > 4 || in[1].dims.size() != 3 || in[0].top_k != in[1].top_k) {
    fail("grouped_linear_dw", "got dy {} and x {}", to_string(in[0]), to_string(in[1]));
  }
  want_counts("grouped_linear_dw", in[2], in[0].dims[0]);
  want_equal("grouped_linear_dw", "number of experts", in[1].dims[0], in[0].dims[0]);
  want_equal("grouped_linear_dw", "x's tokens", in[1].dims[1], in[0].dims[1]);
  TensorType dw{grad_dtype(attrs, in[0].dtype), {in[0].dims[0]}};
  dw.dims.insert(dw.dims.end(), in[0].dims.begin() + 2, in[0].dims.end());
  dw.dims.push_back(in[1].dims[2]);
  return {dw};
}

double per_row(const TensorType& type) {
  return static_cast<double>(type.numel()) / static_cast<double>(type.dims[0]);
}

/// Work under even routing: tokens x top_k rows over all experts, and this rank's part of them.
Work work_of(const Call& call, const TensorType& type) {
  const TensorType& rows = call.in[0];
  if (rows.max_rows() == 0) return {0, 0};  // no experts: no rows
  Work work = memory_bound(call, 0);
  work.flops = 2 * even_numel(call, rows) / static_cast<double>(rows.row_size()) * per_row(type);
  return work;
}
Work work(const Call& call) { return work_of(call, call.in[1]); }
Work work_dw(const Call& call) { return work_of(call, call.out[0]); }

/// Offsets of each expert's rows, and the scratch of one product.
int64_t workspace_of(const Call& call, int64_t n, int64_t k) {
  return round_up((call.in[2].numel() + 1) * 8, 64) +
         product_scratch(call.attrs, n, k, element(call.in[0]));
}
int64_t workspace(const Call& call) {
  return workspace_of(call, call.out[0].row_size(), call.in[0].row_size());
}
/// Workspace of dW, whose inner dimension is the rows.
int64_t workspace_dw(const Call& call) {
  return workspace_of(call, call.in[1].row_size(), call.in[0].max_rows());
}

/// FLOPs of the model: every token visits top_k experts, and its rows are spread over all of them.
double model_flops(const Attrs&, Types in, double) {
  return 2 * static_cast<double>(in[0].dims[1]) * in[0].top_k * per_row(in[1]);
}

void grad(GradContext& context) {
  const auto& node = context.node();
  TensorId dy = context.grad_out(0);
  if (context.needs(0)) {
    context.emit_grad("grouped_linear_dx", node.attrs, {dy, node.in[1], node.in[2]}, 0);
  }
  if (context.needs(1)) {
    context.emit_grad("grouped_linear_dw", node.attrs, {dy, node.in[0], node.in[2]}, 1);
  }
}

/// 4 experts (one may get nothing), 6 tokens, top-2: both operands, and counts from random routes.
Sample sample(TensorType left, TensorType right, int64_t experts) {
  const int64_t tokens = left.dims[1];
  const int64_t top_k = left.top_k;
  Sample sample;
  sample.name = to_string(left) + " " + to_string(right);
  sample.types = {left, right, {DType::i64, {experts}}, {DType::i32, {tokens, top_k}}};
  sample.fills = {{},
                  {},
                  {.kind = Fill::Kind::from_op},
                  {.kind = Fill::Kind::routes, .hi = static_cast<double>(experts - 1)}};
  sample.chain = {{"route_plan", {{"num_experts", experts}}, {3}, {2, -1}}};
  sample.num_inputs = 3;
  return sample;
}
TensorType rows(Dims dims, int32_t k) { return {DType::f64, std::move(dims), k}; }

std::vector<Sample> samples() {
  return {sample(rows({4, 6, 3}, 2), {DType::f64, {4, 5, 3}}, 4),
          sample(rows({4, 6, 3}, 2), {DType::f64, {4, 2, 5, 3}}, 4),
          sample(rows({5, 2, 3}, 1), {DType::f64, {5, 4, 3}}, 5),
          sample(rows({4, 6, 4}, 2), {DType::f64, {4, 6, 4}}, 4),
          sample(rows({4, 6, 4}, 2), {DType::f64, {4, 2, 4, 4}}, 4)};
}
std::vector<Sample> samples_dx() {
  return {sample(rows({4, 6, 5}, 2), {DType::f64, {4, 5, 3}}, 4),
          sample(rows({4, 6, 2, 5}, 2), {DType::f64, {4, 2, 5, 3}}, 4),
          sample(rows({4, 6, 4}, 2), {DType::f64, {4, 4, 6}}, 4),
          sample(rows({4, 6, 2, 4}, 2), {DType::f64, {4, 2, 4, 6}}, 4)};
}
std::vector<Sample> samples_dw() {
  return {sample(rows({4, 6, 5}, 2), rows({4, 6, 3}, 2), 4),
          sample(rows({5, 2, 2, 4}, 1), rows({5, 2, 3}, 1), 5),
          sample(rows({4, 6, 4}, 2), rows({4, 6, 6}, 2), 4),
          sample(rows({4, 6, 2, 4}, 2), rows({4, 6, 4}, 2), 4),
          with_short_gradient(sample(rows({4, 6, 5}, 2), rows({4, 6, 3}, 2), 4))};
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  // Like linear.cc, once per expert over its rows; `e/t` are the counts that give the offsets.
  ops.push_back({.name = "grouped_linear",
                 .doc = "y[e,t,o..] = x[e,t,:] W[e,o..,:]^T on the routed rows; counts[E] rows per "
                        "expert, any of them 0",
                 .infer = infer,
                 .layout = {"etk,efk,e/t->etf|etk,egfk,e/t->etgf", "etfk", "11"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .accumulates = {0},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::expert_products,
                 .model_flops = model_flops});
  ops.push_back({.name = "grouped_linear_dx",
                 .doc = "dx[e,t,:] = dy[e,t,o..] W[e,o..,:]",
                 .infer = infer_dx,
                 .layout = {"etf,efk,e/t->etk|etgf,egfk,e/t->etk", "etfk", "11"},
                 .work = work,
                 .samples = samples_dx,
                 .accumulates = {0},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::expert_products});
  ops.push_back({.name = "grouped_linear_dw",
                 .doc = "dW[e,o..,:] = sum_t dy[e,t,o..] x[e,t,:]",
                 .infer = infer_dw,
                 .layout = {"etf,etk,e/t->efk|etgf,etk,e/t->egfk", "etfk", "11"},
                 .work = work_dw,
                 .samples = samples_dw,
                 .accumulates = {0},
                 .workspace = workspace_dw,
                 .cost_class = CostClass::matmul,
                 .family = Family::expert_products});
}

}  // namespace hocket::ops::grouped_linear

// SPDX-License-Identifier: Apache-2.0
// linear: y[T, o..] = x[T, f..] W[o.., f..]^T. Features may be one or two dims (heads x head dim,
// gate/up x width), so that a layout can split whole heads. dX and dW are ops of their own; dW, a
// sum over tokens, micro-batches and ranks, is at least f32 (grad_dtype). Operands may be 8-bit
// floating point (Micikevicius et al., arXiv 2209.05433), with attribute `dtype` for the result;
// then the gradient dy is cast to it, too.
#include "ops/rules.h"

namespace hocket::ops::linear {
namespace {

bool is_float8(DType dtype) { return graph::is_floating(dtype) && graph::bits_of(dtype) == 8; }

/// Returns the type of a product: that of its operands, or attribute `dtype` for 8-bit ones.
DType product_dtype(std::string_view op, const Attrs& attrs, const TensorType& left,
                    const TensorType& right) {
  want_float(op, left);
  want_dtype(op, right, left.dtype);
  if (!is_float8(left.dtype)) return left.dtype;
  return graph::parse_dtype(attrs.s("dtype"));
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("linear", in, 2);
  const Dims& x = in[0].dims;
  const Dims& w = in[1].dims;
  const DType dtype = product_dtype("linear", attrs, in[0], in[1]);
  size_t features = x.size() - 1;
  if (x.size() < 2 || x.size() > 3 || w.size() <= features || w.size() > 3) {
    fail("linear", "got x {} and W {}; expected x[T,f..], W[o..,f..]", to_string(in[0]),
         to_string(in[1]));
  }
  TensorType type{dtype, {x[0]}};
  for (size_t i = 0; i < features; ++i) {
    want_equal("linear", "W's input width", w[w.size() - features + i], x[1 + i]);
  }
  type.dims.insert(type.dims.end(), w.begin(), w.end() - static_cast<int64_t>(features));
  return {type};
}

std::vector<TensorType> infer_dx(const Attrs& attrs, Types in) {
  want_inputs("linear_dx", in, 2);
  const Dims& dy = in[0].dims;
  const Dims& w = in[1].dims;
  const DType dtype = product_dtype("linear_dx", attrs, in[0], in[1]);
  size_t outs = dy.size() - 1;
  if (dy.size() < 2 || w.size() <= outs || w.size() > 3) {
    fail("linear_dx", "got dy {} and W {}", to_string(in[0]), to_string(in[1]));
  }
  for (size_t i = 0; i < outs; ++i) {
    want_equal("linear_dx", "W's output width", w[i], dy[1 + i]);
  }
  TensorType dx{dtype, {dy[0]}};
  dx.dims.insert(dx.dims.end(), w.begin() + static_cast<int64_t>(outs), w.end());
  return {dx};
}

std::vector<TensorType> infer_dw(const Attrs& attrs, Types in) {
  want_inputs("linear_dw", in, 2);
  const Dims& dy = in[0].dims;
  const Dims& x = in[1].dims;
  const DType dtype = grad_dtype(attrs, product_dtype("linear_dw", attrs, in[0], in[1]));
  if (dy.size() < 2 || x.size() < 2 || dy.size() + x.size() > 5) {
    fail("linear_dw", "got dy {} and x {}", to_string(in[0]), to_string(in[1]));
  }
  want_equal("linear_dw", "x's tokens", x[0], dy[0]);
  TensorType dw{dtype, Dims(dy.begin() + 1, dy.end())};
  dw.dims.insert(dw.dims.end(), x.begin() + 1, x.end());
  return {dw};
}

double per_token(const TensorType& type) { return static_cast<double>(product(type.dims, 1)); }

/// A multiply-add per token, input feature and output feature. Of the three operands x, y and W any
/// two have both numbers of features; `left` and `right` are x and y, or their gradients.
Work work_of(const Call& call, const TensorType& left, const TensorType& right) {
  const double tokens = static_cast<double>(left.dims[0]);
  return {2 * tokens * per_token(left) * per_token(right), total_bytes(call.in, call.out)};
}
Work work(const Call& call) { return work_of(call, call.in[0], call.out[0]); }
Work work_dw(const Call& call) { return work_of(call, call.in[0], call.in[1]); }

int64_t workspace(const Call& call) {
  return product_scratch(call.attrs, product(call.out[0].dims, 1), product(call.in[0].dims, 1),
                         element(call.in[0]));
}
/// Workspace of dW, whose inner dimension is the tokens.
int64_t workspace_dw(const Call& call) {
  return product_scratch(call.attrs, product(call.in[1].dims, 1), call.in[0].dims[0],
                         element(call.in[0]));
}

double model_flops(const Attrs&, Types in, double) {
  return 2 * static_cast<double>(in[0].dims[0]) * static_cast<double>(in[1].numel());
}

void grad(GradContext& context) {
  TensorId dy = context.grad_out(0);
  const TensorId x = context.node().in[0];
  const TensorId weight = context.node().in[1];
  const DType dtype = context.tensor(x).type.dtype;
  Attrs attrs;
  if (is_float8(dtype)) {
    attrs.set("dtype", context.node().attrs.s("dtype"));
    dy = context.emit("cast", {{"dtype", std::string(to_string(dtype))}}, {dy})[0];
  }
  if (context.needs(0)) {
    context.emit_grad("linear_dx", attrs, {dy, weight}, 0);
  }
  if (context.needs(1)) {
    context.emit_grad("linear_dw", attrs, {dy, x}, 1);
  }
}

std::vector<Sample> two_inputs(std::vector<std::pair<Dims, Dims>> shapes) {
  std::vector<Sample> list;
  for (const auto& [left_dims, right_dims] : shapes) {
    const TensorType left{DType::f64, left_dims};
    const TensorType right{DType::f64, right_dims};
    list.push_back({to_string(left) + " " + to_string(right), {}, {left, right}, {{}, {}}, {}});
  }
  return list;
}
std::vector<Sample> samples() {
  return two_inputs({{{12, 7}, {5, 7}},
                     {{8, 8}, {4, 3, 8}},
                     {{8, 4, 3}, {6, 4, 3}},
                     {{1, 1}, {1, 1}},
                     {{4, 6}, {8, 6}},
                     {{4, 2}, {2, 4, 2}},
                     {{4, 2, 4}, {6, 2, 4}}});
}
std::vector<Sample> samples_dx() {
  return two_inputs({{{12, 5}, {5, 7}},
                     {{8, 4, 3}, {4, 3, 8}},
                     {{8, 6}, {6, 4, 3}},
                     {{4, 6}, {6, 8}},
                     {{4, 2, 4}, {2, 4, 6}},
                     {{4, 6}, {6, 2, 4}}});
}
std::vector<Sample> samples_dw() {
  std::vector<Sample> list = two_inputs({{{12, 5}, {12, 7}},
                                         {{8, 4, 3}, {8, 5}},
                                         {{8, 6}, {8, 4, 3}},
                                         {{4, 6}, {4, 8}},
                                         {{4, 2, 4}, {4, 6}},
                                         {{4, 6}, {4, 2, 4}}});
  list.push_back(with_short_gradient(list[0]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  // The product and the two of its backward pass, which are ops of their own so that a schedule can
  // run dW later than dX.
  ops.push_back({.name = "linear",
                 .doc = "y[T,o..] = x[T,f..] W[o..,f..]^T",
                 .infer = infer,
                 .layout = {"tk,fk->tf|tk,hfk->thf|thk,fhk->tf", "tfkh", "11"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .accumulates = {0},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::products,
                 .model_flops = model_flops});
  ops.push_back({.name = "linear_dx",
                 .doc = "dx[T,f..] = dy[T,o..] W[o..,f..]",
                 .infer = infer_dx,
                 .layout = {"tf,fk->tk|thf,hfk->tk|tf,fhk->thk", "tfkh", "11"},
                 .work = work,
                 .samples = samples_dx,
                 .accumulates = {0},
                 .workspace = workspace,
                 .cost_class = CostClass::matmul,
                 .family = Family::products});
  ops.push_back({.name = "linear_dw",
                 .doc = "dW[o..,f..] = dy[T,o..]^T x[T,f..]",
                 .infer = infer_dw,
                 .layout = {"tf,tk->fk|thf,tk->hfk|tf,thk->fhk", "tfkh", "11"},
                 .work = work_dw,
                 .samples = samples_dw,
                 .accumulates = {0},
                 .workspace = workspace_dw,
                 .cost_class = CostClass::matmul,
                 .family = Family::products});
}

}  // namespace hocket::ops::linear

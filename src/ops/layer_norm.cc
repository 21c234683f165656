// SPDX-License-Identifier: Apache-2.0
// layer_norm (Ba et al., arXiv 1607.06450): y = (x - mean) / sqrt(var + eps) * w + b over the last
// dim; also per head ([T,H,d] with w[d], b[d]).
#include "ops/rules.h"

namespace hocket::ops::layer_norm {
namespace {

void want_rows(std::string_view op, const TensorType& x) {
  want_float(op, x);
  if (x.dims.size() < 2 || x.dims.size() > 3 || x.routed()) {
    fail(op, "got {}; expected [T,D] or [T,H,d]", to_string(x));
  }
}
/// A number per row: the mean, and 1 / sqrt(var + eps).
TensorType per_row(const TensorType& x) {
  TensorType rest = x;
  rest.dtype = sum_dtype(x.dtype);
  rest.dims.pop_back();
  return rest;
}
TensorType per_column(const TensorType& x) { return {x.dtype, {x.dims.back()}}; }

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("layer_norm", in, 3);
  want_rows("layer_norm", in[0]);
  want_same("layer_norm", in[1], per_column(in[0]));
  want_same("layer_norm", in[2], per_column(in[0]));
  attrs.f("eps");
  return {in[0], per_row(in[0]), per_row(in[0])};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_inputs("layer_norm_bwd", in, 5);
  want_rows("layer_norm_bwd", in[1]);
  want_same("layer_norm_bwd", in[0], in[1]);
  want_same("layer_norm_bwd", in[2], per_column(in[1]));
  want_same("layer_norm_bwd", in[3], per_row(in[1]));
  want_same("layer_norm_bwd", in[4], per_row(in[1]));
  const TensorType of_weight{grad_dtype(attrs, in[2].dtype), in[2].dims};
  return {in[1], of_weight, of_weight};
}

Work work(const Call& call) { return memory_bound(call, 7); }
Work work_bwd(const Call& call) { return memory_bound(call, 14); }

/// A row of dw and one of db per block of rows.
int64_t workspace_bwd(const Call& call) {
  const TensorType& type = call.in[1];
  const int64_t rows = product(type.dims, 0, type.dims.size() - 1), block = norm_block_rows(rows);
  return 2 * ceil_div(rows, block) * type.dims.back() * element(type);
}

void grad(GradContext& context) {
  const auto& node = context.node();
  const std::vector<TensorId> grads =
      context.emit_grad("layer_norm_bwd", {},
                        {context.grad_out(0), node.in[0], node.in[1], node.out[1], node.out[2]}, 0);
  for (int i : {1, 2}) {
    if (context.needs(i)) {
      context.add_grad(i, grads[static_cast<size_t>(i)]);
    }
  }
}

std::vector<Dims> shapes() { return {{8, 6}, {4, 8, 5}, {3, 4}}; }

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Dims& dims : shapes()) {
    const TensorType x{DType::f64, dims};
    list.push_back(
        {to_string(x), {{"eps", 1e-5}}, {x, per_column(x), per_column(x)}, {{}, {}, {}}, {}, 1e-5});
  }
  return list;
}
std::vector<Sample> samples_bwd() {
  std::vector<Sample> list;
  for (const Dims& dims : shapes()) {
    const TensorType x{DType::f64, dims};
    list.push_back({to_string(x),
                    {},
                    {x, x, per_column(x), per_row(x), per_row(x)},
                    {{}, {}, {}, {}, {.kind = Fill::Kind::uniform, .lo = 0.5, .hi = 2}},
                    {}});
  }
  list.push_back(with_short_gradient(list[0]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = "layer_norm",
       .doc = "y = (x - mean) * rstd * w + b, rstd = 1/sqrt(var + eps), over the last dim",
       .infer = infer,
       .layout = {"td,d,d->td,t,t|thd,d,d->thd,th,th", "th"},
       .work = work,
       .grad = grad,
       .samples = samples,
       .cheap_to_repeat = true});
  ops.push_back({.name = "layer_norm_bwd",
                 .doc =
                     "dx = rstd*(dy*w - mean(dy*w) - xhat*mean(dy*w*xhat)), dw = sum dy*xhat, db "
                     "= sum dy, xhat = (x - mean)*rstd",
                 .infer = infer_bwd,
                 .layout = {"td,td,d,t,t->td,d,d|thd,thd,d,th,th->thd,d,d", "th"},
                 .work = work_bwd,
                 .samples = samples_bwd,
                 .accumulates = {0, 1, 2},
                 .workspace = workspace_bwd});
}

}  // namespace hocket::ops::layer_norm

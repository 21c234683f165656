// SPDX-License-Identifier: Apache-2.0
// rms_norm (Zhang & Sennrich, arXiv 1910.07467): y = x / sqrt(mean(x^2) + eps) * g over the last
// dim; also per head ([T,H,d] with g[d]).
#include "ops/rules.h"

namespace hocket::ops::rms_norm {
namespace {

/// A number per row: 1 / sqrt(mean(x^2) + eps).
TensorType per_row(const TensorType& type) {
  TensorType rest = type;
  rest.dtype = sum_dtype(type.dtype);
  rest.dims.pop_back();
  return rest;
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("rms_norm", in, 2);
  want_float("rms_norm", in[0]);
  want_rank("rms_norm", in[1], 1);
  want_dtype("rms_norm", in[1], in[0].dtype);
  if (in[0].dims.size() < 2 || in[0].dims.size() > 3 || in[0].routed()) {
    fail("rms_norm", "got {}; expected [T,D] or [T,H,d]", to_string(in[0]));
  }
  want_equal("rms_norm", "width of g", in[1].dims[0], in[0].dims.back());
  attrs.f("eps");
  return {in[0], per_row(in[0])};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_inputs("rms_norm_bwd", in, 4);
  want_same("rms_norm_bwd", in[0], in[1]);
  if (in[1].dims.size() < 2 || in[1].dims.size() > 3 || in[1].routed()) {
    fail("rms_norm_bwd", "got {}; expected [T,D] or [T,H,d]", to_string(in[1]));
  }
  want_float("rms_norm_bwd", in[1]);
  want_same("rms_norm_bwd", in[2], {in[1].dtype, {in[1].dims.back()}});
  want_same("rms_norm_bwd", in[3], per_row(in[1]));
  return {in[1], {grad_dtype(attrs, in[2].dtype), in[2].dims}};
}

Work work(const Call& call) { return memory_bound(call, 4); }
Work work_bwd(const Call& call) { return memory_bound(call, 10); }

/// A row of dg per block of rows.
int64_t workspace_bwd(const Call& call) {
  const TensorType& type = call.in[1];
  const int64_t rows = product(type.dims, 0, type.dims.size() - 1), block = norm_block_rows(rows);
  return ceil_div(rows, block) * type.dims.back() * element(type);
}

void grad(GradContext& context) {
  const auto& node = context.node();
  const std::vector<TensorId> grads = context.emit_grad(
      "rms_norm_bwd", {}, {context.grad_out(0), node.in[0], node.in[1], node.out[1]}, 0);
  if (context.needs(1)) {
    context.add_grad(1, grads[1]);
  }
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (Dims dims : std::vector<Dims>{{8, 6}, {4, 8, 5}, {3, 1}}) {
    list.push_back({to_string(TensorType{DType::f64, dims}),
                    {{"eps", 1e-6}},
                    {{DType::f64, dims}, {DType::f64, {dims.back()}}},
                    {{}, {}},
                    {}});
  }
  return list;
}
std::vector<Sample> samples_bwd() {
  std::vector<Sample> list;
  for (Dims dims : std::vector<Dims>{{8, 6}, {4, 8, 5}}) {
    const TensorType type{DType::f64, dims};
    const TensorType rstd = per_row(type);
    list.push_back({to_string(type),
                    {},
                    {type, type, {DType::f64, {dims.back()}}, rstd},
                    {{}, {}, {}, {.kind = Fill::Kind::uniform, .lo = 0.5, .hi = 2}},
                    {}});
  }
  list.push_back(with_short_gradient(list[0]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "rms_norm",
                 .doc = "y = x * rstd * g, rstd = 1/sqrt(mean_last(x^2) + eps)",
                 .infer = infer,
                 .layout = {"td,d->td,t|thd,d->thd,th", "th"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .cheap_to_repeat = true});
  ops.push_back({.name = "rms_norm_bwd",
                 .doc = "dx = rstd*(dy*g - xhat*mean(dy*g*xhat)), dg = sum dy*xhat, xhat = x*rstd",
                 .infer = infer_bwd,
                 .layout = {"td,td,d,t->td,d|thd,thd,d,th->thd,d", "th"},
                 .work = work_bwd,
                 .samples = samples_bwd,
                 .accumulates = {0, 1},
                 .workspace = workspace_bwd});
}

}  // namespace hocket::ops::rms_norm

// SPDX-License-Identifier: Apache-2.0
// The steps of rms_norm over heads and head dim together, each on a part of the heads (h):
// row_sumsq and row_dot give a part of a sum per token, the others act on the heads that they have.
// So ranks that share the heads exchange a number per token. rms_norm.cc is defined by these ops;
// `row` is the number of elements of a whole row.
#include "ops/rules.h"

namespace hocket::ops::row_norm {
namespace {

/// A number per token.
TensorType per_token(const TensorType& x) { return {sum_dtype(x.dtype), {x.dims[0]}}; }
TensorType weight_of(const TensorType& x) { return {x.dtype, {x.dims[1], x.dims[2]}}; }

void want_heads(std::string_view op, const TensorType& x) {
  want_rank(op, x, 3);
  want_float(op, x);
}
/// Expects the elements of a whole row; these heads are a part of it.
void want_row(std::string_view op, const Attrs& attrs, int64_t here) {
  if (const int64_t row = attrs.i("row"); row < 1 || row < here) {
    fail(op, "row is {}; expected at least the {} elements here", row, here);
  }
}

std::vector<TensorType> infer_sumsq(const Attrs&, Types in) {
  want_inputs("row_sumsq", in, 1);
  want_heads("row_sumsq", in[0]);
  return {per_token(in[0])};
}

std::vector<TensorType> infer_rstd(const Attrs& attrs, Types in) {
  want_inputs("row_rstd", in, 1);
  want_rank("row_rstd", in[0], 1);
  want_float("row_rstd", in[0]);
  want_row("row_rstd", attrs, 0);
  attrs.f("eps");
  return {in[0]};
}

std::vector<TensorType> infer_normed(const Attrs&, Types in) {
  want_inputs("row_normed", in, 3);
  want_heads("row_normed", in[0]);
  want_same("row_normed", in[1], weight_of(in[0]));
  want_same("row_normed", in[2], per_token(in[0]));
  return {in[0]};
}

std::vector<TensorType> infer_dot(const Attrs&, Types in) {
  want_inputs("row_dot", in, 3);
  want_heads("row_dot", in[1]);
  want_same("row_dot", in[0], in[1]);
  want_same("row_dot", in[2], weight_of(in[1]));
  return {per_token(in[1])};
}

std::vector<TensorType> infer_normed_bwd(const Attrs& attrs, Types in) {
  want_inputs("row_normed_bwd", in, 5);
  want_heads("row_normed_bwd", in[1]);
  want_same("row_normed_bwd", in[0], in[1]);
  want_same("row_normed_bwd", in[2], weight_of(in[1]));
  want_same("row_normed_bwd", in[3], per_token(in[1]));
  want_same("row_normed_bwd", in[4], per_token(in[1]));
  want_row("row_normed_bwd", attrs, in[2].numel());
  return {in[1], {grad_dtype(attrs, in[2].dtype), in[2].dims}};
}

/// Work with a number of FLOPs per element of the first input.
template <int flops>
Work per_element(const Call& call) {
  return {flops * static_cast<double>(call.in[0].numel()), total_bytes(call.in, call.out)};
}

int64_t workspace_bwd(const Call& call) {
  const TensorType& x = call.in[1];
  const int64_t rows = x.dims[0];
  return ceil_div(rows, norm_block_rows(rows)) * product(x.dims, 1) * element(x);
}

constexpr Fill kPositive{.kind = Fill::Kind::uniform, .lo = 0.5, .hi = 2};

/// Samples with these inputs of each shape, with and without an offset.
std::vector<Sample> samples_of(std::vector<TensorType> (*inputs)(const TensorType& x),
                               std::vector<Fill> fills) {
  std::vector<Sample> list;
  for (const Dims& dims : std::vector<Dims>{{8, 4, 3}, {5, 2, 4}}) {
    const TensorType x{DType::f64, dims};
    Attrs attrs{{"row", product(dims, 1) + 2}, {"eps", 1e-6}};
    if (dims[0] == 5) {
      attrs.set("offset", 1.0);
    }
    list.push_back({to_string(x), attrs, inputs(x), fills, {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  // In the order in which the norm and its gradient apply them.
  ops.push_back({.name = "row_sumsq",
                 .doc = "s[t] = sum_hd x[t,h,d]^2",
                 .infer = infer_sumsq,
                 .layout = {"thd->t", "th"},
                 .work = per_element<2>,
                 .samples = [] {
                   return samples_of([](const TensorType& x) { return std::vector{x}; }, {{}});
                 }});
  ops.push_back({.name = "row_rstd",
                 .doc = "r[t] = 1/sqrt(s[t] / row + eps)",
                 .infer = infer_rstd,
                 .layout = {"t->t", "t"},
                 .work = per_element<4>,
                 .samples = [] {
                   return samples_of([](const TensorType& x) { return std::vector{per_token(x)}; },
                                     {kPositive});
                 }});
  ops.push_back({.name = "row_normed",
                 .doc = "y = x * r[t] * (offset + g[h,d])",
                 .infer = infer_normed,
                 .layout = {"thd,hd,t->thd", "th"},
                 .work = per_element<2>,
                 .samples = [] {
                   return samples_of(
                       [](const TensorType& x) {
                         return std::vector{x, weight_of(x), per_token(x)};
                       },
                       {{}, {}, kPositive});
                 }});
  ops.push_back({.name = "row_dot",
                 .doc = "c[t] = sum_hd dy * (offset + g[h,d]) * x",
                 .infer = infer_dot,
                 .layout = {"thd,thd,hd->t", "th", "1"},
                 .work = per_element<3>,
                 .samples = [] {
                   return samples_of(
                       [](const TensorType& x) {
                         return std::vector{x, x, weight_of(x)};
                       },
                       {{}, {}, {}});
                 }});
  ops.push_back({.name = "row_normed_bwd",
                 .doc = "dx = r*(dy*w - x*r^2*c/row), dg = sum_t dy*x*r, w = offset + g",
                 .infer = infer_normed_bwd,
                 .layout = {"thd,thd,hd,t,t->thd,hd", "th"},
                 .work = per_element<7>,
                 .samples =
                     [] {
                       std::vector<Sample> list = samples_of(
                           [](const TensorType& x) {
                             return std::vector{x, x, weight_of(x), per_token(x), per_token(x)};
                           },
                           {{}, {}, {}, kPositive, {}});
                       list.push_back(with_short_gradient(list[0]));
                       return list;
                     },
                 .accumulates = {0, 1},
                 .workspace = workspace_bwd});
}

}  // namespace hocket::ops::row_norm

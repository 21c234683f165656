// SPDX-License-Identifier: Apache-2.0
// rms_norm (Zhang & Sennrich, arXiv 1910.07467): y = x / sqrt(mean(x^2) + eps) * g over the last
// dim, also per head ([T,H,d] with g[d]). With attribute `dims`=2 it is over heads and head dim
// together (g[H,d]), by definition in the steps of row_norm.cc, which can run on parts of the
// heads. With `offset` the factor is offset + g (Gemma's 1 + g).
#include "ops/rules.h"

namespace hocket::ops::rms_norm {
namespace {

/// Returns the number of dims that a row has.
size_t row_dims(const Attrs& attrs) { return static_cast<size_t>(attrs.i_or("dims", 1)); }

/// A number per row: 1 / sqrt(mean(x^2) + eps).
TensorType per_row(const TensorType& type, size_t of_row) {
  TensorType rest = type;
  rest.dtype = sum_dtype(type.dtype);
  rest.dims.resize(type.dims.size() - of_row);
  return rest;
}

/// Expects rows of one or two dims behind at least one other.
void want_rows(std::string_view op, const Attrs& attrs, const TensorType& x) {
  want_float(op, x);
  if (x.dims.size() < 2 || x.dims.size() > 3 || x.routed()) {
    fail(op, "got {}; expected [T,D] or [T,H,d]", to_string(x));
  }
  const int64_t dims = attrs.i_or("dims", 1);
  if (dims < 1 || dims >= static_cast<int64_t>(x.dims.size())) {
    fail(op, "dims is {} for {}; expected 1, or 2 of [T,H,d]", dims, to_string(x));
  }
}

/// The type of g: the dims of a row.
TensorType weight_of(const TensorType& x, size_t of_row) {
  return {x.dtype, Dims(x.dims.end() - static_cast<int64_t>(of_row), x.dims.end())};
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("rms_norm", in, 2);
  want_rows("rms_norm", attrs, in[0]);
  want_same("rms_norm", in[1], weight_of(in[0], row_dims(attrs)));
  attrs.f("eps");
  return {in[0], per_row(in[0], row_dims(attrs))};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  want_inputs("rms_norm_bwd", in, 4);
  want_same("rms_norm_bwd", in[0], in[1]);
  want_rows("rms_norm_bwd", attrs, in[1]);
  want_same("rms_norm_bwd", in[2], weight_of(in[1], row_dims(attrs)));
  want_same("rms_norm_bwd", in[3], per_row(in[1], row_dims(attrs)));
  return {in[1], {grad_dtype(attrs, in[2].dtype), in[2].dims}};
}

Work work(const Call& call) { return memory_bound(call, 4); }
Work work_bwd(const Call& call) { return memory_bound(call, 10); }

/// A row of dg per block of rows.
int64_t workspace_bwd(const Call& call) {
  const TensorType& type = call.in[1];
  const size_t outer = type.dims.size() - row_dims(call.attrs);
  const int64_t rows = product(type.dims, 0, outer), block = norm_block_rows(rows);
  return ceil_div(rows, block) * product(type.dims, outer) * element(type);
}

void grad(GradContext& context) {
  const auto& node = context.node();
  Attrs attrs = node.attrs;
  attrs.erase("eps");
  const std::vector<TensorId> grads = context.emit_grad(
      "rms_norm_bwd", attrs, {context.grad_out(0), node.in[0], node.in[1], node.out[1]}, 0);
  if (context.needs(1)) {
    context.add_grad(1, grads[1]);
  }
}

Attrs offset_of(const Attrs& attrs) {
  Attrs made;
  if (attrs.has("offset")) {
    made.set("offset", attrs.f("offset"));
  }
  return made;
}

std::vector<int> define(Definition& graph, const Attrs& attrs, std::span<const int> in) {
  if (row_dims(attrs) == 1) return {};
  const int64_t row = graph.type(in[1]).numel();
  const int sum = graph.apply("row_sumsq", {}, {in[0]})[0];
  const int rstd = graph.apply("row_rstd", {{"row", row}, {"eps", attrs.f("eps")}}, {sum})[0];
  return {graph.apply("row_normed", offset_of(attrs), {in[0], in[1], rstd})[0], rstd};
}

std::vector<int> define_bwd(Definition& graph, const Attrs& attrs, std::span<const int> in) {
  if (row_dims(attrs) == 1) return {};
  Attrs of_gradients = offset_of(attrs);
  const int dot = graph.apply("row_dot", of_gradients, {in[0], in[1], in[2]})[0];
  of_gradients.set("row", graph.type(in[2]).numel());
  if (attrs.has("short_gradient")) {
    of_gradients.set("short_gradient", attrs.i("short_gradient"));
  }
  return graph.apply("row_normed_bwd", of_gradients, {in[0], in[1], in[2], in[3], dot});
}

struct Case {
  Dims dims;
  Attrs attrs = {};
};
const std::vector<Case>& cases() {
  static const std::vector<Case> list = {{{8, 6}},
                                         {{4, 8, 5}},
                                         {{3, 1}},
                                         {{4, 8, 5}, {{"offset", 1.0}}},
                                         {{8, 2, 3}, {{"dims", int64_t{2}}}},
                                         {{4, 3, 5}, {{"dims", int64_t{2}}, {"offset", 0.5}}}};
  return list;
}
std::string name_of(const Case& c) {
  return to_string(TensorType{DType::f64, c.dims}) + graph::to_string(c.attrs);
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Case& c : cases()) {
    const TensorType x{DType::f64, c.dims};
    Attrs attrs = c.attrs;
    attrs.set("eps", 1e-6);
    list.push_back({name_of(c), attrs, {x, weight_of(x, row_dims(attrs))}, {{}, {}}, {}});
  }
  return list;
}
std::vector<Sample> samples_bwd() {
  std::vector<Sample> list;
  for (const Case& c : cases()) {
    const TensorType x{DType::f64, c.dims};
    const size_t of_row = row_dims(c.attrs);
    list.push_back({name_of(c),
                    c.attrs,
                    {x, x, weight_of(x, of_row), per_row(x, of_row)},
                    {{}, {}, {}, {.kind = Fill::Kind::uniform, .lo = 0.5, .hi = 2}},
                    {}});
  }
  list.push_back(with_short_gradient(list[0]));
  list.push_back(with_short_gradient(list[4]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "rms_norm",
                 .doc = "y = x * rstd * (offset + g), rstd = 1/sqrt(mean(x^2) + eps) over the last "
                        "`dims` dims",
                 .infer = infer,
                 .layout = {"td,d->td,t|thd,d->thd,th|tnd,nd->tnd,t", "th"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .cheap_to_repeat = true,
                 .define = define,
                 .defined = Defined::expands});
  ops.push_back(
      {.name = "rms_norm_bwd",
       .doc = "dx = rstd*(dy*w - xhat*mean(dy*w*xhat)), dg = sum dy*xhat, xhat = x*rstd, w = "
              "offset + g",
       .infer = infer_bwd,
       .layout = {"td,td,d,t->td,d|thd,thd,d,th->thd,d|tnd,tnd,nd,t->tnd,nd", "th"},
       .work = work_bwd,
       .samples = samples_bwd,
       .accumulates = {0, 1},
       .workspace = workspace_bwd,
       .define = define_bwd,
       .defined = Defined::expands});
}

}  // namespace hocket::ops::rms_norm

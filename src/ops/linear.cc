// SPDX-License-Identifier: Apache-2.0
// linear: y[T, o..] = x[T, f..] W[o.., f..]^T. Features may be one or two dims (heads x head dim,
// gate/up x width), so that a layout can split whole heads. dX and dW are ops of their own.
#include "ops/rules.h"

namespace hocket::ops {
namespace {

int64_t product(const Dims& d, size_t begin) {
  int64_t n = 1;
  for (size_t i = begin; i < d.size(); ++i) n *= d[i];
  return n;
}

Cost gemm(std::string_view op, const Attrs& attrs, Types in, Types out, double m, double n,
          double k) {
  return {2 * m * n * k, total_bytes(in, out), workspace_bytes(op, attrs, in, out)};
}

std::vector<TensorType> infer(const Attrs&, Types in) {
  want_inputs("linear", in, 2);
  const Dims &x = in[0].dims, &w = in[1].dims;
  want_float("linear", in[0]);
  want_dtype("linear", in[1], in[0].dtype);
  size_t features = x.size() - 1;
  if (x.size() < 2 || x.size() > 3 || w.size() <= features || w.size() > 3)
    fail("linear", "got x {} and W {}; expected x[T,f..], W[o..,f..]", to_string(in[0]),
         to_string(in[1]));
  TensorType y{in[0].dtype, {x[0]}};
  for (size_t i = 0; i < features; ++i)
    want_equal("linear", "W's input width", w[w.size() - features + i], x[1 + i]);
  y.dims.insert(y.dims.end(), w.begin(), w.end() - static_cast<int64_t>(features));
  return {y};
}

std::vector<TensorType> infer_dx(const Attrs&, Types in) {
  want_inputs("linear_dx", in, 2);
  const Dims &dy = in[0].dims, &w = in[1].dims;
  want_float("linear_dx", in[0]);
  want_dtype("linear_dx", in[1], in[0].dtype);
  size_t outs = dy.size() - 1;
  if (dy.size() < 2 || w.size() <= outs || w.size() > 3)
    fail("linear_dx", "got dy {} and W {}", to_string(in[0]), to_string(in[1]));
  for (size_t i = 0; i < outs; ++i) want_equal("linear_dx", "W's output width", w[i], dy[1 + i]);
  TensorType dx{in[0].dtype, {dy[0]}};
  dx.dims.insert(dx.dims.end(), w.begin() + static_cast<int64_t>(outs), w.end());
  return {dx};
}

std::vector<TensorType> infer_dw(const Attrs&, Types in) {
  want_inputs("linear_dw", in, 2);
  const Dims &dy = in[0].dims, &x = in[1].dims;
  want_float("linear_dw", in[0]);
  want_dtype("linear_dw", in[1], in[0].dtype);
  if (dy.size() < 2 || x.size() < 2 || dy.size() + x.size() > 5)
    fail("linear_dw", "got dy {} and x {}", to_string(in[0]), to_string(in[1]));
  want_equal("linear_dw", "x's tokens", x[0], dy[0]);
  TensorType dw{in[0].dtype, Dims(dy.begin() + 1, dy.end())};
  dw.dims.insert(dw.dims.end(), x.begin() + 1, x.end());
  return {dw};
}

Cost cost(const Attrs& a, Types in, Types out) {
  double t = static_cast<double>(in[0].dims[0]);
  return gemm("linear", a, in, out, t, static_cast<double>(product(out[0].dims, 1)),
              static_cast<double>(product(in[0].dims, 1)));
}
Cost cost_dx(const Attrs& a, Types in, Types out) {
  double t = static_cast<double>(in[0].dims[0]);
  return gemm("linear_dx", a, in, out, t, static_cast<double>(product(in[0].dims, 1)),
              static_cast<double>(product(out[0].dims, 1)));
}
Cost cost_dw(const Attrs& a, Types in, Types out) {
  double t = static_cast<double>(in[0].dims[0]);
  return gemm("linear_dw", a, in, out, t, static_cast<double>(product(in[0].dims, 1)),
              static_cast<double>(product(in[1].dims, 1)));
}

void grad(GradContext& g) {
  TensorId dy = g.grad_out(0), x = g.node().in[0], w = g.node().in[1];
  if (g.needs(0)) g.emit_grad("linear_dx", {}, {dy, w}, 0);
  if (g.needs(1)) g.emit_grad("linear_dw", {}, {dy, x}, 1);
}

std::vector<Sample> two_inputs(std::vector<std::pair<Dims, Dims>> shapes) {
  std::vector<Sample> list;
  for (auto& [a, b] : shapes) {
    TensorType ta{DType::f64, a}, tb{DType::f64, b};
    list.push_back({to_string(ta) + " " + to_string(tb), {}, {ta, tb}, {{}, {}}, {}});
  }
  return list;
}
std::vector<Sample> samples() {
  return two_inputs({{{12, 7}, {5, 7}}, {{8, 8}, {4, 3, 8}}, {{8, 4, 3}, {6, 4, 3}}, {{1, 1}, {1, 1}},
                     {{4, 6}, {8, 6}}, {{4, 2}, {2, 4, 2}}, {{4, 2, 4}, {6, 2, 4}}});
}
std::vector<Sample> samples_dx() {
  return two_inputs({{{12, 5}, {5, 7}}, {{8, 4, 3}, {4, 3, 8}}, {{8, 6}, {6, 4, 3}}, {{4, 6}, {6, 8}},
                     {{4, 2, 4}, {2, 4, 6}}, {{4, 6}, {6, 2, 4}}});
}
std::vector<Sample> samples_dw() {
  return two_inputs({{{12, 5}, {12, 7}}, {{8, 4, 3}, {8, 5}}, {{8, 6}, {8, 4, 3}}, {{4, 6}, {4, 8}},
                     {{4, 2, 4}, {4, 6}}, {{4, 6}, {4, 2, 4}}});
}

}  // namespace

void register_linear(std::vector<Op>& ops) {
  ops.push_back({.name = "linear",
                 .doc = "y[T,o..] = x[T,f..] W[o..,f..]^T",
                 .infer = infer,
                 .layout = {"tk,fk->tf|tk,hfk->thf|thk,fhk->tf", "tfkh", "11"},
                 .cost = cost,
                 .grad = grad,
                 .samples = samples,
                 .accumulates = {0}});
  ops.push_back({.name = "linear_dx",
                 .doc = "dx[T,f..] = dy[T,o..] W[o..,f..]",
                 .infer = infer_dx,
                 .layout = {"tf,fk->tk|thf,hfk->tk|tf,fhk->thk", "tfkh", "11"},
                 .cost = cost_dx,
                 .samples = samples_dx,
                 .accumulates = {0}});
  ops.push_back({.name = "linear_dw",
                 .doc = "dW[o..,f..] = dy[T,o..]^T x[T,f..]",
                 .infer = infer_dw,
                 .layout = {"tf,tk->fk|thf,tk->hfk|tf,thk->fhk", "tfkh", "11"},
                 .cost = cost_dw,
                 .samples = samples_dw,
                 .accumulates = {0}});
}

}  // namespace hocket::ops

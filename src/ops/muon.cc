// SPDX-License-Identifier: Apache-2.0
// Muon (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982), the
// formula of torch.optim.Muon, as three ops: of the two that act element by element each rank has
// its part, and between them every matrix is orthogonalised whole. muon_momentum gives the mean of
// the gradient, in place, and the direction of the step, both in the type of sums. orthogonalize
// makes the singular values of each matrix nearly 1. muon updates the parameter, muon_master its
// master weights (src/ops/adamw.cc). hyper[0] is the learning rate; coef is the clipping factor. A
// coef that is no number skips the step: parameters and states stay as they are.
#include <algorithm>
#include <string>

#include "ops/rules.h"

namespace hocket::ops::muon {
namespace {

std::vector<TensorType> infer_momentum(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "muon_momentum";
  want_inputs(kOp, in, 3);
  want_float(kOp, in[0]);
  want_same(kOp, in[1], {sum_dtype(in[0].dtype), in[0].dims});
  want_scalar(kOp, in[2], DType::f64);
  attrs.f("momentum");
  attrs.i("nesterov");
  return {in[1], in[1]};
}

/// Rows and columns of each matrix of a tensor, and their number.
struct Matrices {
  int64_t number = 0, rows = 0, columns = 0;
};

/// Returns the matrices of an operand: its first `each` dims number them, and the rows of one are
/// the next `rows` dims.
Matrices matrices(const Attrs& attrs, const Dims& dims, size_t each) {
  const size_t rows = each + static_cast<size_t>(attrs.i_or("rows", 1));
  return {each == 0 ? 1 : product(Dims(dims.begin(), dims.begin() + static_cast<int64_t>(each)), 0),
          product(dims, each, rows), product(dims, rows)};
}

void want_matrices(std::string_view op, const Attrs& attrs, Types in) {
  want_inputs(op, in, 1);
  want_float(op, in[0]);
  for (const char* key : {"a", "b", "c", "eps"}) {
    attrs.f(key);
  }
  if (attrs.i("steps") < 1) fail(op, "steps is {}; expected at least 1", attrs.i("steps"));
}

std::vector<TensorType> infer_one(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "orthogonalize";
  want_matrices(kOp, attrs, in);
  const size_t rank = in[0].dims.size();
  if (rank < 2 || rank > 3) fail(kOp, "got {}; expected rank 2 or 3", to_string(in[0]));
  if (const int64_t rows = attrs.i_or("rows", 1); rows < 1 || rows >= std::ssize(in[0].dims)) {
    fail(kOp, "rows is {}; expected from 1 to {}", rows, rank - 1);
  }
  return {in[0]};
}

std::vector<TensorType> infer_each(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "orthogonalize_each";
  want_matrices(kOp, attrs, in);
  const size_t rank = in[0].dims.size();
  if (rank < 3 || rank > 4) fail(kOp, "got {}; expected rank 3 or 4", to_string(in[0]));
  return {in[0]};
}

Matrices matrices_of(const Call& call, bool each) {
  const Dims& dims = call.in[0].dims;
  return matrices(call.attrs, dims, each ? dims.size() - 2 : 0);
}

/// Work of X X^T, its square, and their sum times X, with r the shorter side and c the longer.
Work work_of(const Call& call, bool each) {
  const Matrices all = matrices_of(call, each);
  const auto r = static_cast<double>(std::min(all.rows, all.columns));
  const auto c = static_cast<double>(std::max(all.rows, all.columns));
  const auto steps = static_cast<double>(call.attrs.i("steps"));
  const double flops = 2 * r * r * (2 * c + r) * steps + 3 * r * c;
  return {static_cast<double>(all.number) * flops, total_bytes(call.in, call.out)};
}

/// X once more, X X^T and its square, and the scratch of products.
int64_t workspace_of(const Call& call, bool each) {
  const Matrices all = matrices_of(call, each);
  const int64_t r = std::min(all.rows, all.columns), c = std::max(all.rows, all.columns);
  const int64_t e = element(call.in[0]);
  const int64_t scratch =
      std::max(product_scratch(call.attrs, r, c, e), product_scratch(call.attrs, c, r, e));
  return round_up(r * c * e, 64) + 2 * round_up(r * r * e, 64) + scratch;
}

void want_settings(std::string_view op, const Attrs& attrs, const TensorType& coef,
                   const TensorType& hyper) {
  want_scalar(op, coef, DType::f64);
  if (hyper.dtype != DType::f64 || hyper.encoding || hyper.dims.size() != 1) {
    fail(op, "hyper is {}; expected f64[n]", to_string(hyper));
  }
  for (const char* key : {"weight_decay", "ratio"}) {
    attrs.f(key);
  }
}

std::vector<TensorType> infer_muon(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "muon";
  want_inputs(kOp, in, 4);
  want_float(kOp, in[0]);
  want_same(kOp, in[1], in[0]);
  want_settings(kOp, attrs, in[2], in[3]);
  return {in[0]};
}

std::vector<TensorType> infer_master(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "muon_master";
  want_inputs(kOp, in, 5);
  want_float(kOp, in[0]);
  for (size_t i = 1; i < 3; ++i) {
    want_same(kOp, in[i], {sum_dtype(in[0].dtype), in[0].dims});
  }
  want_settings(kOp, attrs, in[3], in[4]);
  return {in[0], in[2]};
}

Work work_momentum(const Call& call) { return memory_bound(call, 5); }
Work work_muon(const Call& call) { return memory_bound(call, 4); }
/// Work with master weights: the parameter itself is written, not read.
Work work_master(const Call& call) {
  Work work = memory_bound(call, 5);
  work.bytes -= call.in[0].bytes();
  return work;
}

const std::vector<Dims> kShapes{{6, 4}, {8}, {4, 2, 4}, {2, 2, 2, 4}};
const Fill kPositive{.kind = Fill::Kind::uniform, .lo = 0.1, .hi = 1};
const Attrs kSeries{{"a", 3.4445}, {"b", -4.775}, {"c", 2.0315}, {"eps", 1e-7}};

std::vector<Sample> samples_momentum() {
  std::vector<Sample> list;
  for (const int64_t nesterov : {1, 0}) {
    for (const Dims& dims : kShapes) {
      const TensorType type{DType::f64, dims};
      list.push_back({to_string(type) + (nesterov != 0 ? " nesterov" : ""),
                      {{"momentum", 0.9}, {"nesterov", nesterov}},
                      {type, type, {DType::f64, {1}}},
                      {{}, {}, kPositive},
                      {}});
    }
  }
  return list;
}

Sample sample_of(Dims dims, int64_t rows) {
  Attrs attrs = kSeries;
  attrs.set("steps", int64_t{5});
  if (rows > 1) {
    attrs.set("rows", rows);
  }
  const TensorType type{DType::f64, std::move(dims)};
  return {to_string(type) + " " + std::to_string(rows), attrs, {type}, {{}}, {}};
}
std::vector<Sample> samples_one() {
  return {sample_of({6, 4}, 1), sample_of({4, 10}, 1), sample_of({4, 4}, 1),
          sample_of({4, 2, 6}, 1), sample_of({4, 2, 6}, 2)};
}
std::vector<Sample> samples_each() {
  return {sample_of({2, 6, 4}, 1), sample_of({4, 2, 6}, 1), sample_of({4, 2, 4, 6}, 1)};
}

std::vector<Sample> samples_of(size_t tensors) {
  std::vector<Sample> list;
  for (const Dims& dims : kShapes) {
    const TensorType type{DType::f64, dims};
    std::vector<TensorType> types(tensors, type);
    types.insert(types.end(), {{DType::f64, {1}}, {DType::f64, {3}}});
    std::vector<Fill> fills(tensors);
    fills.insert(fills.end(), 2, kPositive);
    list.push_back({to_string(type),
                    {{"weight_decay", 0.1}, {"lr_scale", 0.5}, {"ratio", 2.0}},
                    types,
                    fills,
                    {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "muon_momentum",
                 .doc = "g*=coef; m=momentum*m+(1-momentum)*g; u=m, with nesterov "
                        "u=momentum*m+(1-momentum)*g; if coef is NaN m stays and u=0",
                 .infer = infer_momentum,
                 .layout = {.notation = "a,a,.->a,a|ab,ab,.->ab,ab|abc,abc,.->abc,abc|"
                                        "abcd,abcd,.->abcd,abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work_momentum,
                 .samples = samples_momentum,
                 .inplace = {{1, 0}},
                 .family = Family::optimizer});
  ops.push_back({.name = "orthogonalize",
                 .doc = "X = u / max(|u|, eps), |u| over all elements; steps times "
                        "X = a*X + (b*A + c*A*A)*X with A = X X^T; the first `rows` dims are the "
                        "rows of the matrix",
                 .infer = infer_one,
                 .layout = {"ab->ab|abc->abc", ""},
                 .work = [](const Call& call) { return work_of(call, false); },
                 .samples = samples_one,
                 .workspace = [](const Call& call) { return workspace_of(call, false); },
                 .cost_class = CostClass::matmul,
                 .family = Family::optimizer});
  ops.push_back({.name = "orthogonalize_each",
                 .doc = "orthogonalize of every matrix [r,k] of the last two dims",
                 .infer = infer_each,
                 .layout = {"grk->grk|ghrk->ghrk", "gh"},
                 .work = [](const Call& call) { return work_of(call, true); },
                 .samples = samples_each,
                 .workspace = [](const Call& call) { return workspace_of(call, true); },
                 .cost_class = CostClass::matmul,
                 .family = Family::optimizer});
  ops.push_back({.name = "muon",
                 .doc =
                     "lr=hyper[0]*lr_scale (1 without it); p*=1-lr*wd; p-=lr*ratio*u; nothing if "
                     "coef is NaN",
                 .infer = infer_muon,
                 .layout = {.notation = "a,a,.,x->a|ab,ab,.,x->ab|abc,abc,.,x->abc|"
                                        "abcd,abcd,.,x->abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work_muon,
                 .samples = [] { return samples_of(2); },
                 .inplace = {{0, 0}},
                 .family = Family::optimizer});
  ops.push_back({.name = "muon_master",
                 .doc = "w as muon updates p; p = w in the type of p",
                 .infer = infer_master,
                 .layout = {.notation = "a,a,a,.,x->a,a|ab,ab,ab,.,x->ab,ab|"
                                        "abc,abc,abc,.,x->abc,abc|"
                                        "abcd,abcd,abcd,.,x->abcd,abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work_master,
                 .samples = [] { return samples_of(3); },
                 .inplace = {{0, 0}, {2, 1}},
                 .family = Family::optimizer});
}

}  // namespace hocket::ops::muon

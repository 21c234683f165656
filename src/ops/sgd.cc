// SPDX-License-Identifier: Apache-2.0
// sgd: stochastic gradient descent with momentum, the formula of torch.optim.SGD, in place.
// hyper = {lr} changes from step to step; coef is the clipping factor. A coef that is no number
// skips the step: all stays as it is. sgd_master is the same for parameters of fewer bits than
// their update needs (src/ops/adamw.cc).
#include "ops/rules.h"

namespace hocket::ops::sgd {
namespace {

void want_settings(std::string_view op, const Attrs& attrs, const TensorType& coef,
                   const TensorType& hyper) {
  want_scalar(op, coef, DType::f64);
  want_scalar(op, hyper, DType::f64);
  for (const char* key : {"momentum", "weight_decay"}) {
    attrs.f(key);
  }
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("sgd", in, 5);
  want_float("sgd", in[0]);
  for (size_t i = 1; i < 3; ++i) {
    want_same("sgd", in[i], in[0]);
  }
  want_settings("sgd", attrs, in[3], in[4]);
  return {in[0], in[2]};
}

std::vector<TensorType> infer_master(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "sgd_master";
  want_inputs(kOp, in, 6);
  want_float(kOp, in[0]);
  want_same(kOp, in[1], {grad_dtype(attrs, in[0].dtype), in[0].dims});
  for (size_t i = 2; i < 4; ++i) {
    want_same(kOp, in[i], {sum_dtype(in[0].dtype), in[0].dims});
  }
  want_settings(kOp, attrs, in[4], in[5]);
  return {in[0], in[2], in[3]};
}

Work work(const Call& call) { return memory_bound(call, 6); }
/// Work with master weights: the parameter itself is written, not read.
Work work_master(const Call& call) {
  Work work = memory_bound(call, 7);
  work.bytes -= call.in[0].bytes();
  return work;
}

std::vector<Sample> samples_of(size_t tensors) {
  const Fill positive{.kind = Fill::Kind::uniform, .lo = 0.1, .hi = 1};
  std::vector<Sample> list;
  for (const Dims& dims : std::vector<Dims>{{6, 4}, {8}, {4, 2, 4}, {2, 2, 2, 4}}) {
    const TensorType type{DType::f64, dims};
    std::vector<TensorType> types(tensors, type);
    types.insert(types.end(), 2, {DType::f64, {1}});
    std::vector<Fill> fills(tensors);
    fills.insert(fills.end(), 2, positive);
    list.push_back({to_string(type), {{"momentum", 0.9}, {"weight_decay", 0.1}}, types, fills, {}});
  }
  return list;
}
std::vector<Sample> samples() {
  std::vector<Sample> list = samples_of(3);
  list.push_back(list[0]);
  list.back().name += " nesterov";
  list.back().attrs.set("nesterov", int64_t{1});
  list.back().attrs.set("lr_scale", 0.5);
  return list;
}
std::vector<Sample> samples_master() {
  std::vector<Sample> list = samples_of(4);
  list.push_back(with_short_gradient(list[0]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "sgd",
                 .doc =
                     "g=coef*g+wd*p; m=momentum*m+g; p-=lr*m, with nesterov p-=lr*(g+momentum*m); "
                     "nothing if coef is NaN",
                 .infer = infer,
                 .layout = {.notation = "a,a,a,.,.->a,a|ab,ab,ab,.,.->ab,ab|"
                                        "abc,abc,abc,.,.->abc,abc|abcd,abcd,abcd,.,.->abcd,abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work,
                 .samples = samples,
                 .inplace = {{0, 0}, {2, 1}},
                 .family = Family::optimizer});
  ops.push_back({.name = "sgd_master",
                 .doc = "w and m as sgd updates p and m; p = w in the type of p",
                 .infer = infer_master,
                 .layout = {.notation = "a,a,a,a,.,.->a,a,a|ab,ab,ab,ab,.,.->ab,ab,ab|"
                                        "abc,abc,abc,abc,.,.->abc,abc,abc|"
                                        "abcd,abcd,abcd,abcd,.,.->abcd,abcd,abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work_master,
                 .samples = samples_master,
                 .inplace = {{0, 0}, {2, 1}, {3, 2}},
                 .family = Family::optimizer});
}

}  // namespace hocket::ops::sgd

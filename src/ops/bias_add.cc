// SPDX-License-Identifier: Apache-2.0
// bias_add: y = x + b for every token, b with the features of x (one dim or two: heads x head dim,
// gate/up x width); on routed rows the bias is that of the row's expert, with the counts per expert
// as the last input. The sum over tokens of the gradient is an op of its own, so that layouts may
// cut the tokens.
#include "ops/rules.h"

namespace hocket::ops::bias_add {
namespace {

/// Expects features of one or two dims behind the tokens, or behind experts and tokens.
void want_features(std::string_view op, const TensorType& x) {
  want_float(op, x);
  const size_t before = x.routed() ? 2 : 1;
  if (x.dims.size() <= before || x.dims.size() > before + 2) {
    fail(op, "got {}; expected [T,f..], or routed rows [E,T,f..]@k", to_string(x));
  }
}
/// Expects the counts of routed rows at input `at`, and no other input from there on.
void want_counts(std::string_view op, Types in, size_t at) {
  want_inputs(op, in, in[0].routed() ? at + 1 : at);
  if (!in[0].routed()) return;
  want_vector(op, in[at], DType::i64, in[0].dims[0], "number of counts");
}
/// Returns the dims of the bias of x: its features, for each expert of a routed one.
Dims bias_dims(const TensorType& x) {
  Dims dims = x.dims;
  dims.erase(dims.begin() + (x.routed() ? 1 : 0));
  return dims;
}

std::vector<TensorType> infer(const Attrs&, Types in) {
  if (in.size() < 2) {
    want_inputs("bias_add", in, 2);
  }
  want_features("bias_add", in[0]);
  want_counts("bias_add", in, 2);
  want_same("bias_add", in[1], {in[0].dtype, bias_dims(in[0])});
  return {in[0]};
}

std::vector<TensorType> infer_db(const Attrs& attrs, Types in) {
  if (in.empty()) {
    want_inputs("bias_add_db", in, 1);
  }
  want_features("bias_add_db", in[0]);
  want_counts("bias_add_db", in, 1);
  return {{grad_dtype(attrs, in[0].dtype), bias_dims(in[0])}};
}

Work work(const Call& call) { return memory_bound(call, 1); }
/// An addition per element of dy.
Work work_db(const Call& call) {
  Work work = memory_bound(call, 0);
  work.flops = even_numel(call, call.in[0]);
  return work;
}

void grad(GradContext& context) {
  const auto& node = context.node();
  if (context.needs(0)) {
    context.add_grad(0, context.grad_out(0));
  }
  if (!context.needs(1)) return;
  std::vector<TensorId> in{context.grad_out(0)};
  if (node.in.size() > 2) {
    in.push_back(node.in[2]);
  }
  context.emit_grad("bias_add_db", {}, in, 1);
}

Sample routed(std::vector<TensorType> inputs) {
  const int n = static_cast<int>(inputs.size());
  Sample sample;
  sample.name = "routed " + to_string(inputs[0]);
  sample.types = std::move(inputs);
  sample.types.push_back({DType::i64, {4}});
  sample.types.push_back({DType::i32, {6, 2}});
  sample.fills.resize(static_cast<size_t>(n));
  sample.fills.push_back({.kind = Fill::Kind::from_op});
  sample.fills.push_back({.kind = Fill::Kind::routes, .hi = 3});
  sample.chain = {{"route_plan", {{"num_experts", int64_t{4}}}, {n + 1}, {n, -1}}};
  sample.num_inputs = n + 1;
  return sample;
}

/// Samples of all forms, with the bias as second input or without it.
std::vector<Sample> samples_of(bool with_bias) {
  std::vector<Sample> list;
  for (const Dims& dims : std::vector<Dims>{{8, 6}, {6, 4, 5}, {4, 2, 6}, {1, 3}}) {
    const TensorType x{DType::f64, dims};
    std::vector<TensorType> types{x};
    if (with_bias) {
      types.push_back({DType::f64, bias_dims(x)});
    }
    list.push_back({to_string(x), {}, types, std::vector<Fill>(types.size()), {}});
  }
  for (const Dims& dims : std::vector<Dims>{{4, 6, 6}, {4, 6, 2, 4}, {4, 6, 3}}) {
    const TensorType x{DType::f64, dims, 2};
    std::vector<TensorType> types{x};
    if (with_bias) {
      types.push_back({DType::f64, bias_dims(x)});
    }
    list.push_back(routed(types));
  }
  return list;
}
std::vector<Sample> samples() { return samples_of(true); }
std::vector<Sample> samples_db() {
  std::vector<Sample> list = samples_of(false);
  list.push_back(with_short_gradient(list[0]));
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "bias_add",
                 .doc = "y[t,f..] = x[t,f..] + b[f..]; of routed rows y[e,t,f..] = x + b[e,f..]",
                 .infer = infer,
                 .layout = {"tf,f->tf|thf,hf->thf|etf,ef,e/t->etf|ethf,ehf,e/t->ethf", "tfhe"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .may_overwrite = {{0, 0}}});
  ops.push_back({.name = "bias_add_db",
                 .doc = "db[f..] = sum_t dy[t,f..]; of routed rows db[e,f..] over those of e",
                 .infer = infer_db,
                 .layout = {"tf->f|thf->hf|etf,e/t->ef|ethf,e/t->ehf", "tfhe", "1"},
                 .work = work_db,
                 .samples = samples_db,
                 .accumulates = {0}});
}

}  // namespace hocket::ops::bias_add

// SPDX-License-Identifier: Apache-2.0
// swiglu (Shazeer, arXiv 2002.05202): h = silu(g) * u, gate and up side by side in gu[T,2,F]; on
// routed rows as well, with the counts per expert as the last input.
#include "ops/rules.h"

namespace hocket::ops::swiglu {
namespace {

size_t two_at(const TensorType& gu) { return gu.routed() ? 2 : 1; }

void want_counts(std::string_view op, Types in, size_t at) {
  want_inputs(op, in, in[0].routed() ? at + 1 : at);
  if (!in[0].routed()) return;
  want_vector(op, in[at], DType::i64, in[0].dims[0], "number of counts");
}

std::vector<TensorType> infer(const Attrs&, Types in) {
  if (in.empty()) {
    want_inputs("swiglu", in, 1);
  }
  want_float("swiglu", in[0]);
  want_counts("swiglu", in, 1);
  size_t two = two_at(in[0]);
  if (in[0].dims.size() != two + 2 || in[0].dims[two] != 2) {
    fail("swiglu", "got {}; expected [..,2,F]", to_string(in[0]));
  }
  TensorType type = in[0];
  type.dims.erase(type.dims.begin() + static_cast<int64_t>(two));
  return {type};
}

std::vector<TensorType> infer_bwd(const Attrs& attrs, Types in) {
  if (in.size() < 2) {
    want_inputs("swiglu_bwd", in, 2);
  }
  want_counts("swiglu_bwd", in, 2);
  std::vector<TensorType> rest{in[1]};
  if (in.size() > 2) {
    rest.push_back(in[2]);
  }
  want_same("swiglu_bwd", in[0], infer(attrs, rest)[0]);
  return {in[1]};
}

Work work(const Call& call) { return memory_bound(call, 6); }

void grad(GradContext& context) {
  std::vector<TensorId> in{context.grad_out(0)};
  in.insert(in.end(), context.node().in.begin(), context.node().in.end());
  context.add_grad(0, context.emit("swiglu_bwd", {}, in)[0]);
}

const Fill kRoutes{.kind = Fill::Kind::routes, .hi = 3};
const Fill kFrom{.kind = Fill::Kind::from_op};

Sample routed(std::vector<TensorType> inputs) {
  const int n = static_cast<int>(inputs.size());
  Sample sample;
  sample.name = "routed " + to_string(inputs.back());
  sample.types = std::move(inputs);
  sample.types.push_back({DType::i64, {4}});
  sample.types.push_back({DType::i32, {6, 2}});
  sample.fills.resize(static_cast<size_t>(n));
  sample.fills.push_back(kFrom);
  sample.fills.push_back(kRoutes);
  sample.chain = {{"route_plan", {{"num_experts", int64_t{4}}}, {n + 1}, {n, -1}}};
  sample.num_inputs = n + 1;
  return sample;
}
std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (int64_t f : {5, 6}) {
    list.push_back({"[8,2,F]", {}, {{DType::f64, {8, 2, f}}}, {{}}, {}});
  }
  for (int64_t f : {3, 4}) {
    list.push_back(routed({{DType::f64, {4, 6, 2, f}, 2}}));
  }
  return list;
}
std::vector<Sample> samples_bwd() {
  std::vector<Sample> list;
  for (int64_t f : {5, 6}) {
    list.push_back({"[8,2,F]", {}, {{DType::f64, {8, f}}, {DType::f64, {8, 2, f}}}, {{}, {}}, {}});
  }
  for (int64_t f : {3, 4}) {
    list.push_back(routed({{DType::f64, {4, 6, f}, 2}, {DType::f64, {4, 6, 2, f}, 2}}));
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "swiglu",
                 .doc = "h = silu(gu[..,0,:]) * gu[..,1,:]",
                 .infer = infer,
                 .layout = {"tgf->tf|etgf,e/t->etf", "tfe"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .cheap_to_repeat = true});
  ops.push_back({.name = "swiglu_bwd",
                 .doc = "dg = dh*u*s*(1 + g*(1-s)), du = dh*silu(g), s = sigmoid(g)",
                 .infer = infer_bwd,
                 .layout = {"tf,tgf->tgf|etf,etgf,e/t->etgf", "tfe", "1"},
                 .work = work,
                 .samples = samples_bwd});
}

}  // namespace hocket::ops::swiglu

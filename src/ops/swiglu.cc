// SPDX-License-Identifier: Apache-2.0
// swiglu (Shazeer, arXiv 2002.05202): h = silu(g) * u, gate and up side by side in gu[T,2,F]; on
// routed rows as well, with the counts per expert as the last input. geglu is the same with gelu,
// exact or, with attribute `approximate`="tanh", by tanh.
#include "base/text.h"
#include "ops/rules.h"

namespace hocket::ops::swiglu {
namespace {

size_t two_at(const TensorType& gu) { return gu.routed() ? 2 : 1; }

void want_counts(std::string_view op, Types in, size_t at) {
  want_inputs(op, in, in[0].routed() ? at + 1 : at);
  if (!in[0].routed()) return;
  want_vector(op, in[at], DType::i64, in[0].dims[0], "number of counts");
}

std::vector<TensorType> gated(std::string_view op, Types in) {
  if (in.empty()) {
    want_inputs(op, in, 1);
  }
  want_float(op, in[0]);
  want_counts(op, in, 1);
  size_t two = two_at(in[0]);
  if (in[0].dims.size() != two + 2 || in[0].dims[two] != 2) {
    fail(op, "got {}; expected [..,2,F]", to_string(in[0]));
  }
  TensorType type = in[0];
  type.dims.erase(type.dims.begin() + static_cast<int64_t>(two));
  return {type};
}

std::vector<TensorType> gated_bwd(std::string_view op, Types in) {
  if (in.size() < 2) {
    want_inputs(op, in, 2);
  }
  want_counts(op, in, 2);
  want_same(op, in[0], gated(op, in.subspan(1))[0]);
  return {in[1]};
}

std::vector<TensorType> infer(const Attrs&, Types in) { return gated("swiglu", in); }
std::vector<TensorType> infer_bwd(const Attrs&, Types in) { return gated_bwd("swiglu_bwd", in); }

void want_approximate(std::string_view op, const Attrs& attrs) {
  const std::string& approximate = attrs.s("approximate");
  if (approximate != "none" && approximate != "tanh") {
    fail(op, "approximate is {}; expected none or tanh", quote(approximate));
  }
}
std::vector<TensorType> infer_geglu(const Attrs& attrs, Types in) {
  want_approximate("geglu", attrs);
  return gated("geglu", in);
}
std::vector<TensorType> infer_geglu_bwd(const Attrs& attrs, Types in) {
  want_approximate("geglu_bwd", attrs);
  return gated_bwd("geglu_bwd", in);
}

Work work(const Call& call) { return memory_bound(call, 6); }
Work work_geglu(const Call& call) { return memory_bound(call, 10); }

void grad(GradContext& context) {
  const auto& node = context.node();
  std::vector<TensorId> in{context.grad_out(0)};
  in.insert(in.end(), node.in.begin(), node.in.end());
  context.add_grad(0, context.emit(node.op + "_bwd", node.attrs, in)[0]);
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

/// The same samples with every form of gelu.
std::vector<Sample> with_gelu(const std::vector<Sample>& list) {
  std::vector<Sample> both;
  for (const std::string approximate : {"none", "tanh"}) {
    for (Sample sample : list) {
      sample.name += " " + approximate;
      sample.attrs.set("approximate", approximate);
      both.push_back(sample);
    }
  }
  return both;
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
  ops.push_back({.name = "geglu",
                 .doc = "h = gelu(gu[..,0,:]) * gu[..,1,:], `approximate`: none, or tanh",
                 .infer = infer_geglu,
                 .layout = {"tgf->tf|etgf,e/t->etf", "tfe"},
                 .work = work_geglu,
                 .grad = grad,
                 .samples = [] { return with_gelu(samples()); },
                 .cheap_to_repeat = true});
  ops.push_back({.name = "geglu_bwd",
                 .doc = "dg = dh*u*gelu'(g), du = dh*gelu(g)",
                 .infer = infer_geglu_bwd,
                 .layout = {"tf,tgf->tgf|etf,etgf,e/t->etgf", "tfe", "1"},
                 .work = work_geglu,
                 .samples = [] { return with_gelu(samples_bwd()); }});
}

}  // namespace hocket::ops::swiglu

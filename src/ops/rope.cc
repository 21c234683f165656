// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding (Su et al., arXiv 2104.09864) in the half-rotation form of
// Hugging Face Llama; the gradient is the inverse rotation.
#include "ops/rules.h"

namespace hocket::ops::rope {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("rope", in, 2);
  want_rank("rope", in[0], 3);
  want_float("rope", in[0]);
  want_vector("rope", in[1], DType::i32, in[0].dims[0], "number of positions");
  if (in[0].dims[2] % 2 != 0) {
    fail("rope", "head dim is {}; expected an even number", in[0].dims[2]);
  }
  attrs.f("theta");
  return {in[0]};
}

Work work(const Call& call) { return memory_bound(call, 3); }

/// Frequencies, the rotated rows, and the coarse and fine tables of angles.
int64_t workspace(const Call& call) {
  const TensorType& type = call.in[0];
  const int64_t t = type.dims[0];
  const int64_t d = type.dims[2];
  const int64_t e = element(type);
  return round_up(d / 2 * 8, 64) + round_up(t * d * e, 64) + kRopeStep * d * 8 +
         round_up((t / kRopeStep + 1) * d * 8, 64) + 64;
}

void grad(GradContext& context) {
  Attrs attrs = context.node().attrs;
  attrs.set("inverse", 1 - attrs.i_or("inverse", 0));
  auto d = context.emit("rope", attrs, {context.grad_out(0), context.node().in[1]});
  context.add_grad(0, d[0]);
}

Attrs base(int64_t inverse) {
  return {{"theta", 10000.0}, {"inverse", inverse}, {"scaling", std::string("default")}};
}

std::vector<Sample> samples() {
  Attrs llama3 = {{"theta", 500000.0},
                  {"inverse", int64_t{0}},
                  {"scaling", std::string("llama3")},
                  {"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position", 32.0}};
  Attrs linear = base(0);
  linear.set("scaling", std::string("linear"));
  linear.set("factor", 2.0);
  std::vector<Sample> list;
  for (const auto& [name, attrs] : std::vector<std::pair<std::string, Attrs>>{
           {"plain", base(0)}, {"inverse", base(1)}, {"llama3", llama3}, {"linear", linear}}) {
    list.push_back({name,
                    attrs,
                    {{DType::f64, {8, 4, 6}}, {DType::i32, {8}}},
                    {{}, {.kind = Fill::Kind::documents}},
                    {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "rope",
                 .doc = "rotates pairs (i, i+d/2) of x[T,H,d] by pos[T] * theta^(-2i/d), scaled",
                 .infer = infer,
                 .layout = {"thd,t->thd", "th", "10"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .workspace = workspace,
                 .cheap_to_repeat = true});
}

}  // namespace hocket::ops::rope

// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding (Su et al., arXiv 2104.09864) in the half-rotation form of
// Hugging Face Llama; the gradient is the inverse rotation. With attribute `dims` the first dims of
// a head turn alone. `scaling` says how frequencies depend on the context (rope_frequencies.h).
#include "ops/rope_frequencies.h"
#include "ops/rules.h"

namespace hocket::ops::rope {
namespace {

/// Returns the number of dims of a head that turn.
int64_t turned(const Attrs& attrs, const TensorType& x) { return attrs.i_or("dims", x.dims[2]); }

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("rope", in, 2);
  want_rank("rope", in[0], 3);
  want_float("rope", in[0]);
  want_vector("rope", in[1], DType::i32, in[0].dims[0], "number of positions");
  const int64_t dims = turned(attrs, in[0]);
  if (!attrs.has("dims") && dims % 2 != 0) {
    fail("rope", "head dim is {}; expected an even number", dims);
  }
  if (dims < 2 || dims % 2 != 0 || dims > in[0].dims[2]) {
    fail("rope", "dims is {} of a head dim of {}; expected an even number from 2 to it", dims,
         in[0].dims[2]);
  }
  std::vector<double> frequencies(static_cast<size_t>(dims / 2));
  rope_frequencies(attrs, frequencies);
  return {in[0]};
}

Work work(const Call& call) { return memory_bound(call, 3); }

/// Frequencies, the rotated rows, and the coarse and fine tables of angles.
int64_t workspace(const Call& call) {
  const TensorType& type = call.in[0];
  const int64_t t = type.dims[0];
  const int64_t d = turned(call.attrs, type);
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

std::vector<Sample> samples() {
  struct Case {
    std::string name, scaling = "default";
    Attrs more = {};
    int64_t inverse = 0;
  };
  const Attrs yarn{{"factor", 4.0}, {"original_max_position", 64.0}, {"beta_fast", 4.0}};
  Attrs unlike_yarn = yarn;
  unlike_yarn.set("mscale", 0.7);
  unlike_yarn.set("mscale_all_dim", 1.5);
  unlike_yarn.set("truncate", int64_t{0});
  unlike_yarn.set("dims", int64_t{4});
  const std::vector<Case> cases = {
      {"plain"},
      {"inverse", "default", {}, 1},
      {"first dims", "default", {{"dims", int64_t{4}}}},
      {"llama3",
       "llama3",
       {{"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position", 32.0}}},
      {"linear", "linear", {{"factor", 2.0}}},
      {"dynamic",
       "dynamic",
       {{"factor", 2.0}, {"original_max_position", 16.0}, {"seq", int64_t{40}}}},
      {"yarn", "yarn", yarn},
      {"yarn of some dims", "yarn", unlike_yarn},
      {"longrope",
       "longrope",
       {{"factors", std::string("1 1.5 4")}, {"factor", 4.0}, {"original_max_position", 64.0}}}};
  std::vector<Sample> list;
  for (const Case& c : cases) {
    Attrs attrs = c.more;
    attrs.set("theta", c.scaling == "llama3" ? 500000.0 : 10000.0);
    attrs.set("inverse", c.inverse);
    attrs.set("scaling", c.scaling);
    list.push_back({c.name,
                    attrs,
                    {{DType::f64, {8, 4, 6}}, {DType::i32, {8}}},
                    {{}, {.kind = Fill::Kind::documents}},
                    {}});
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back(
      {.name = "rope",
       .doc = "rotates pairs (i, i+n/2) of the first n = `dims` (or all) of d in x[T,H,d] by "
              "pos[T] * theta^(-2i/n), scaled",
       .infer = infer,
       .layout = {"thd,t->thd", "th", "10"},
       .work = work,
       .grad = grad,
       .samples = samples,
       .workspace = workspace,
       .cheap_to_repeat = true});
}

}  // namespace hocket::ops::rope

// SPDX-License-Identifier: Apache-2.0
// lora_scale: the factor of an adapter between its products A and B (models/lora.h). y[T,r] =
// factor * x[T,r]; of features in parts y[T,g,r], a factor for each, and zeros behind the columns
// that a part keeps: parts of different ranks share one tensor, and columns beyond a part's rank
// have no effect and no gradient. On routed rows with the counts per expert as the last input.
// Layouts do not split the columns: they are few, and the dims around them are worth splitting. The
// gradient is the op itself on dy.
#include "ops/lora_scale.h"

#include <cmath>

#include "base/text.h"
#include "ops/rules.h"

namespace hocket::ops {

std::vector<double> part_numbers(const Attrs& attrs, const std::string& key) {
  std::vector<double> numbers;
  for (const std::string& text : split(attrs.s(key), ' ')) {
    if (!parse_double(text, &numbers.emplace_back())) {
      fail("lora_scale", "{} are {}; expected a number per part", key, quote(attrs.s(key)));
    }
  }
  return numbers;
}

}  // namespace hocket::ops

namespace hocket::ops::lora_scale {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  constexpr const char* kOp = "lora_scale";
  if (in.empty()) {
    want_inputs(kOp, in, 1);
  }
  const TensorType& x = in[0];
  want_float(kOp, x);
  if (x.routed()) {
    want_inputs(kOp, in, 2);
    if (x.dims.size() != 3) fail(kOp, "got {}; expected routed rows [E,T,r]@k", to_string(x));
    want_vector(kOp, in[1], DType::i64, x.dims[0], "number of counts");
  } else {
    want_inputs(kOp, in, 1);
    if (x.dims.size() < 2 || x.dims.size() > 3) {
      fail(kOp, "got {}; expected [T,r] or [T,g,r]", to_string(x));
    }
  }
  const int64_t parts = x.routed() || x.dims.size() == 2 ? 1 : int64_t{x.dims[1]};
  const std::vector<double> factors = part_numbers(attrs, "factors");
  const std::vector<double> kept = part_numbers(attrs, "kept");
  if (std::ssize(factors) != parts || std::ssize(kept) != parts) {
    fail(kOp, "factors are {}, kept {}; expected {} numbers each", attrs.s("factors"),
         attrs.s("kept"), parts);
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!std::isfinite(factors[i])) fail(kOp, "factor {} is {}", i, factors[i]);
    if (!(kept[i] >= 0) || kept[i] != std::floor(kept[i])) {
      fail(kOp, "kept columns of part {} are {}; expected a number of columns", i, kept[i]);
    }
  }
  return {x};
}

Work work(const Call& call) { return memory_bound(call, 1); }

void grad(GradContext& context) {
  const auto& node = context.node();
  std::vector<TensorId> in = node.in;
  in[0] = context.grad_out(0);
  context.add_grad(0, context.emit("lora_scale", node.attrs, in)[0]);
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  struct Case {
    Dims dims;
    const char *factors, *kept;
  };
  const auto attrs = [](const char* factors, const char* kept) {
    return Attrs{{"factors", std::string(factors)}, {"kept", std::string(kept)}};
  };
  for (const Case& c : {Case{{8, 4}, "-2.5", "4"}, Case{{6, 2, 4}, "2 -0.5", "4 2"},
                        Case{{4, 2, 3}, "0.25 3", "0 3"}, Case{{4, 1, 1}, "2", "1"}}) {
    const TensorType x{DType::f64, c.dims};
    list.push_back({to_string(x) + " kept " + c.kept, attrs(c.factors, c.kept), {x}, {{}}, {}});
  }
  Sample routed{"routed", attrs("-2.5", "4"), {{DType::f64, {4, 6, 4}, 2}}, {}, {}};
  routed.types.push_back({DType::i64, {4}});
  routed.types.push_back({DType::i32, {6, 2}});
  routed.fills = {{}, {.kind = Fill::Kind::from_op}, {.kind = Fill::Kind::routes, .hi = 3}};
  routed.chain = {{"route_plan", {{"num_experts", int64_t{4}}}, {2}, {1, -1}}};
  routed.num_inputs = 2;
  list.push_back(routed);
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "lora_scale",
                 .doc = "y[T,r] = factors[0] x[T,r]; y[T,g,r] = factors[g] x[T,g,r] where r < "
                        "kept[g], else 0",
                 .infer = infer,
                 .layout = {"tr->tr|tgr->tgr|etr,e/t->etr", "te", "1"},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .may_overwrite = {{0, 0}}});
}

}  // namespace hocket::ops::lora_scale

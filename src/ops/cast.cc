// SPDX-License-Identifier: Apache-2.0
// cast: the same numbers in another element type. To floating-point types values are rounded to the
// nearest, ties to even; f16 and bf16 become infinite beyond their range, as in IEEE 754, while the
// 8-bit types saturate at their largest number (OCP 8-bit floating point specification). To
// integers they are cut towards zero and saturate; NaN becomes 0. The gradient is cast back, unless
// it has that type already, or is of a parameter and of the type of its sums.
#include "ops/rules.h"

namespace hocket::ops::cast {
namespace {

void want_numbers(DType dtype) {
  if (dtype == DType::f8_e8m0 || graph::bits_of(dtype) < 8) {
    fail("cast", "{} is no type of numbers by themselves; expected one of whole bytes",
         to_string(dtype));
  }
}

std::vector<TensorType> infer(const Attrs& attrs, Types in) {
  want_inputs("cast", in, 1);
  if (in[0].encoding || in[0].routed() || in[0].dims.empty() || in[0].dims.size() > 4) {
    fail("cast", "got {}; expected a dense tensor of rank 1 to 4, elements without scales",
         to_string(in[0]));
  }
  TensorType type = in[0];
  type.dtype = graph::parse_dtype(attrs.s("dtype"));
  want_numbers(in[0].dtype);
  want_numbers(type.dtype);
  return {type};
}

Work work(const Call& call) { return memory_bound(call, 1); }

void grad(GradContext& context) {
  const auto& node = context.node();
  const graph::Tensor& x = context.tensor(node.in[0]);
  const DType from = x.type.dtype;
  if (!context.needs(0)) return;
  const DType comes = context.tensor(context.grad_out(0)).type.dtype;
  const bool is_param = x.kind == graph::TensorKind::param;
  if (comes == from || (is_param && comes == sum_dtype(from))) {
    context.add_grad(0, context.grad_out(0));
    return;
  }
  context.add_grad(
      0, context.emit("cast", {{"dtype", std::string(to_string(from))}}, {context.grad_out(0)})[0]);
}

Sample sample(DType from, DType to, Dims dims) {
  Sample sample;
  sample.name =
      std::string(to_string(from)) + " to " + to_string(to) + " " + std::to_string(dims.size());
  sample.attrs = {{"dtype", std::string(to_string(to))}};
  sample.types = {{from, std::move(dims)}};
  const bool floats = graph::is_floating(from) && graph::is_floating(to);
  // Differences are taken, and gradients added up, in f64.
  sample.fills = {floats ? Fill{.kind = Fill::Kind::normal}
                         : Fill{.kind = Fill::Kind::integers, .lo = 0, .hi = 100}};
  sample.smooth = floats && from == DType::f64 && graph::bits_of(to) >= 32;
  sample.fd_tolerance = 1e-3;  // of f32: the differences are of rounded numbers
  return sample;
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Dims& dims : std::vector<Dims>{{8}, {6, 4}, {4, 2, 4}, {2, 2, 2, 4}}) {
    list.push_back(sample(DType::f64, DType::f32, dims));
  }
  const Dims dims{6, 4};
  for (int from = 0; from < graph::kNumDTypes; ++from) {
    for (int to = 0; to < graph::kNumDTypes; ++to) {
      const DType pair[] = {static_cast<DType>(from), static_cast<DType>(to)};
      const bool numbers = std::all_of(std::begin(pair), std::end(pair), [](DType dtype) {
        return dtype != DType::f8_e8m0 && graph::bits_of(dtype) >= 8;
      });
      if (numbers) {
        list.push_back(sample(pair[0], pair[1], dims));
      }
    }
  }
  return list;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = "cast",
                 .doc = "y = x in the element type `dtype`, rounded to nearest even",
                 .infer = infer,
                 .layout = {.notation = "a->a|ab->ab|abc->abc|abcd->abcd",
                            .split = "abcd",
                            .keeps_zero = true},
                 .work = work,
                 .grad = grad,
                 .samples = samples,
                 .cheap_to_repeat = true,
                 .takes_any_type = true});
}

}  // namespace hocket::ops::cast

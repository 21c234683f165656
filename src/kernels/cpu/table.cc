// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu_table.h"

#include "base/error.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// All kernels here read dense operands that begin at index 0 of their letters.
void refuse_views(const KernelArgs& args) {
  for (const auto list : {args.in, args.out}) {
    for (const TensorRef& operand : list) {
      if (operand.strides) {
        fail_run("kernel", "got strides for operand {}; expected it without gaps",
                 to_string(*operand.type));
      }
    }
  }
  if (!args.begins.empty()) {
    fail_run("kernel", "got a piece that begins at {} of letter '{}'; expected it to begin at 0",
             args.begins[0].index, args.begins[0].letter);
  }
}

template <KernelFn kernel>
void call(const KernelArgs& args) {
  refuse_views(args);
  kernel(args);
}

constexpr CpuKernel kKernels[] = {
#define FLOATS(op, signature) \
  {#op, signature, &call<&HOCKET_CPU::op<float>>, &call<&HOCKET_CPU::op<double>>},
#define ONE(op, signature) {#op, signature, nullptr, &call<&HOCKET_CPU::op>},
#include "kernels/cpu/kernels.inc"
#undef FLOATS
#undef ONE
};

}  // namespace

const CpuTable& table() {
  static const CpuTable all{kVecBytes, kKernels};
  return all;
}

}  // namespace hocket::kernels::HOCKET_CPU

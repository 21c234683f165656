// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu_table.h"

#include "base/error.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Most kernels here read dense operands, and all such that begin at index 0 of their letters.
template <bool strided>
void refuse_views(const KernelArgs& args) {
  for (const auto list : {args.in, args.out}) {
    for (const TensorRef& operand : list) {
      if (operand.strides && !strided) {
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

template <KernelFn kernel, bool strided = false>
void call(const KernelArgs& args) {
  refuse_views<strided>(args);
  kernel(args);
}

constexpr bool floats = false, any = true;

constexpr CpuKernel kKernels[] = {
#define X(op, operands) \
  {#op, operands, &call<&HOCKET_CPU::op<float>>, &call<&HOCKET_CPU::op<double>>},
#define X_STRIDED(op, operands) \
  {#op, operands, &call<&HOCKET_CPU::op<float>, true>, &call<&HOCKET_CPU::op<double>, true>},
#include "kernels/cpu/kernels.inc"
#undef X
};

}  // namespace

const CpuTable& table() {
  static const CpuTable all{kVecBytes, kKernels};
  return all;
}

}  // namespace hocket::kernels::HOCKET_CPU

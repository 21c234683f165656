// SPDX-License-Identifier: Apache-2.0
// Implements: the kernel table of one instruction set (cpu_table.h), compiled once per level.
#include "kernels/cpu_table.h"

#include "base/error.h"
#include "base/small_float.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/upconvert.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Letters with an offset that the kernel uses.
struct Letters {
  char list[8] = {};
  constexpr explicit Letters(const char* from) {
    for (size_t i = 0; from[i] != 0; ++i) {
      list[i] = from[i];
    }
  }
};

/// Refuses views that a kernel cannot read: most read dense operands, and support offsets along a
/// few letters.
void refuse_views(const KernelArgs& args, std::string_view followed, bool strided) {
  for (const auto list : {args.in, args.out}) {
    for (const TensorRef& operand : list) {
      if (operand.strides && !strided) {
        fail_run("kernel", "got strides for operand {}; expected it without gaps",
                 to_string(*operand.type));
      }
    }
  }
  for (const LetterOffset& begin : args.piece_offsets) {
    if (begin.index != 0 && followed.find(begin.letter) == std::string_view::npos) {
      fail_run("kernel", "got a piece that begins at {} of letter '{}'; expected it to begin at 0",
               begin.index, begin.letter);
    }
  }
}

template <KernelFn kernel, Letters followed, bool strided = false>
void call(const KernelArgs& args) {
  refuse_views(args, followed.list, strided);
  kernel(args);
}

/// A kernel for f32, on short operands.
template <KernelFn kernel, Letters followed>
void call_on_copies(const KernelArgs& args) {
  refuse_views(args, followed.list, false);
  on_f32_copies(args, kernel);
}

using graph::DType;

constexpr CpuKernel kKernels[] = {
#define FLOATS(op, signature, letters)                                                          \
  {#op, signature, DType::f32, &call<&HOCKET_CPU::op<float>, Letters(letters)>},                \
      {#op, signature, DType::f64, &call<&HOCKET_CPU::op<double>, Letters(letters)>},           \
      {#op, signature, DType::bf16, &call_on_copies<&HOCKET_CPU::op<float>, Letters(letters)>}, \
      {#op, signature, DType::f16, &call_on_copies<&HOCKET_CPU::op<float>, Letters(letters)>},
#define EACH(op, signature, letters)                                                  \
  {#op, signature, DType::f32, &call<&HOCKET_CPU::op<float>, Letters(letters)>},      \
      {#op, signature, DType::f64, &call<&HOCKET_CPU::op<double>, Letters(letters)>}, \
      {#op, signature, DType::bf16, &call<&HOCKET_CPU::op<Bf16>, Letters(letters)>},  \
      {#op, signature, DType::f16, &call<&HOCKET_CPU::op<F16>, Letters(letters)>},
#define MOVES(op, signature, letters)                                          \
  {#op, signature, DType::f32, &call<&HOCKET_CPU::op, Letters(letters)>},      \
      {#op, signature, DType::f64, &call<&HOCKET_CPU::op, Letters(letters)>},  \
      {#op, signature, DType::bf16, &call<&HOCKET_CPU::op, Letters(letters)>}, \
      {#op, signature, DType::f16, &call<&HOCKET_CPU::op, Letters(letters)>},
#define ONE(op, signature, letters) \
  {#op, signature, DType::f64, &call<&HOCKET_CPU::op, Letters(letters)>},
#define ONE_STRIDED(op, signature, letters) \
  {#op, signature, DType::f64, &call<&HOCKET_CPU::op, Letters(letters), true>},
#include "kernels/cpu/kernels.inc"
#undef FLOATS
#undef MOVES
#undef ONE
};

}  // namespace

const CpuTable& table() {
  static const CpuTable all{kVecBytes, kKernels};
  return all;
}

}  // namespace hocket::kernels::HOCKET_CPU

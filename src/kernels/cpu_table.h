// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set: what src/kernels/cpu exports each time that it is compiled.
#pragma once

#include <span>

#include "kernels/abi.h"

namespace hocket::kernels {

struct CpuKernel {
  const char* op;
  const char* signature;  ///< the types of its operands (kernels/signature.h)
  KernelFn f32, f64;      ///< compiled for T = f32 (null if no operand depends on T) and f64
};

struct CpuTable {
  int vector_bytes;
  std::span<const CpuKernel> kernels;  ///< sorted by op
};

#define LEVEL(space, name) \
  namespace space {        \
  const CpuTable& table(); \
  }
#include "kernels/levels.inc"
#undef LEVEL

}  // namespace hocket::kernels

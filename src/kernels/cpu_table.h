// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set: what src/kernels/cpu exports each time that it is compiled.
#pragma once

#include <span>

#include "kernels/abi.h"

namespace hocket::kernels {

/// There is one for every type that an op's kernels take.
struct CpuKernel {
  const char* op;
  const char* signature;  ///< the types of its operands (kernels/signature.h)
  graph::DType dtype;     ///< what T stands for there
  KernelFn kernel;
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

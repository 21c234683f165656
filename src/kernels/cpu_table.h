// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set: the exports of each compilation of src/kernels/cpu.
#pragma once

#include <span>

#include "kernels/abi.h"

namespace hocket::kernels {

/// There is one for every type that an op's kernels take.
struct CpuKernel {
  const char* op;
  const char* signature;  ///< the types of its operands (kernels/signature.h)
  graph::DType dtype;     ///< the type for T
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

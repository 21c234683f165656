// SPDX-License-Identifier: Apache-2.0
// Calling convention of kernels: plain pointers, types, attributes. Kernels of every device and
// library, ours and test doubles, use these few types.
#pragma once

#include <cstdint>
#include <span>

#include "graph/tensor_type.h"

namespace hocket::kernels {

enum class Device : uint8_t { cpu, cuda };

/// A local tensor as a kernel sees it. For a routed tensor dims are [E_local, T, F...] and storage
/// is [rows, F...]; the op's counts input gives the rows per expert.
struct TensorRef {
  void* data = nullptr;
  const graph::TensorType* type = nullptr;
  /// Elements between neighbours of each dim, for a view of a larger tensor; null: row-major,
  /// without gaps.
  const int64_t* strides = nullptr;

  int64_t dim(int i) const { return type->dims[i]; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// Offset of the local piece along a letter of the op's notation, for kernels that depend on
/// position (causal masks, vocabulary shards).
struct LetterOffset {
  char letter = 0;
  int64_t index = 0;
};

/// Arguments of one kernel call. Bit i of `accumulate`: output i already holds the value to add to
/// (the accumulators are not among `in`). The kernel may touch `workspace[0, workspace_bytes)` and
/// its operands, nothing else. In-place ops get the same pointer as input and output. A kernel
/// refuses (Error) strides and begins that it does not know how to follow.
struct KernelArgs {
  const graph::Attrs* attrs = nullptr;
  std::span<const TensorRef> in;
  std::span<const TensorRef> out;
  uint32_t accumulate = 0;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  std::span<const LetterOffset> piece_offsets = {};  ///< of positional letters
  void* queue = nullptr;  ///< handle of the device's queue (runtime::Queue); null on a CPU
};

using KernelFn = void (*)(const KernelArgs&);

/// The types of a task's operands: with op and device they decide on the kernel.
struct OperandTypes {
  std::span<const graph::TensorType> in, out;
};

}  // namespace hocket::kernels

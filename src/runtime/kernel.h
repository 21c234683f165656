// SPDX-License-Identifier: Apache-2.0
// The seam between the torch-free executor and the kernels: plain pointers, dims and attributes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "graph/tensor_type.h"

namespace hocket::runtime {

enum class Device : uint8_t { cpu, cuda };

/// A local tensor as a kernel sees it: contiguous, row-major. For a routed tensor dims are
/// [E_local, T, F...] and storage is [rows, F...]; the op's counts input gives the rows per expert.
struct TensorRef {
  void* data = nullptr;
  const graph::TensorType* type = nullptr;
  int64_t dim(int i) const { return type->dims[static_cast<size_t>(i)]; }
  template <typename T>
  T* as() const { return static_cast<T*>(data); }
};

/// Arguments of one kernel call. Bit i of `accumulate`: output i already holds the value to add to
/// (the accumulators are not among `in`). The kernel may touch `workspace[0, workspace_bytes)` and
/// its operands, nothing else. In-place ops get the same pointer as input and output.
struct KernelArgs {
  const graph::Attrs* attrs = nullptr;
  std::span<const TensorRef> in;
  std::span<const TensorRef> out;
  uint32_t accumulate = 0;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

using KernelFn = void (*)(const KernelArgs&);

/// Kernels of one library (LibTorch on CPU, CUDA, or fakes for tests).
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string describe() const = 0;
  /// The kernel of `op` for this compute dtype, or null.
  virtual KernelFn find(std::string_view op, Device device, graph::DType dtype) const = 0;
  /// Called first by every lane thread; sets its intra-op thread count.
  virtual void enter_thread(int num_threads) = 0;
  /// Allocations that kernels have made outside their workspace so far. Tests hold it at zero.
  virtual int64_t stray_allocations() const { return 0; }
};

/// Loads the LibTorch backend (libhocket_torch.so beside the executable, or HOCKET_TORCH_LIB);
/// throws Error with the loader's reason.
std::shared_ptr<Backend> load_torch_backend();

/// The file that load_torch_backend loads; it may be absent.
std::string torch_library_path();

}  // namespace hocket::runtime

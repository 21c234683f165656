// SPDX-License-Identifier: Apache-2.0
// What ATen allocates while a kernel runs comes from that task's declared workspace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hocket::runtime {

/// Marks the calling thread as running the kernel of `op` with this workspace. Not nested.
class KernelScope {
 public:
  KernelScope(const char* op, std::byte* workspace, int64_t bytes);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;
};

/// Replaces c10's CPU allocator, once per process: inside a KernelScope allocations are cut from
/// the end of the workspace (given back in any order, reused when the last one goes; Error when it
/// is full), elsewhere they go to the allocator that was there before.
void install_workspace_allocator();

/// Allocations that a kernel caused outside its workspace so far: those made on worker threads
/// inside a parallel region. Tests hold it at zero.
int64_t stray_allocations();

}  // namespace hocket::runtime

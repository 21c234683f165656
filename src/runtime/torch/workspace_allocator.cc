// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/workspace_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <omp.h>

#include <atomic>
#include <mutex>

#include "base/error.h"
#include "kernels/scratch.h"

namespace hocket::runtime {
namespace {

/// Kernels take their own scratch from the front of the workspace; ATen gets the back.
struct Active {
  const char* op = nullptr;
  std::byte *begin = nullptr, *end = nullptr, *top = nullptr;
  int64_t live = 0;
};
thread_local Active active;
std::atomic<int64_t> strays{0};

void release(void*) {
  if (--active.live == 0) active.top = active.end;
}

class WorkspaceAllocator final : public c10::Allocator {
 public:
  explicit WorkspaceAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t n) override {
    if (active.op == nullptr) {
      if (omp_in_parallel()) strays.fetch_add(1, std::memory_order_relaxed);
      return base_->allocate(n);
    }
    const size_t bytes = (n + 63) / 64 * 64;
    if (static_cast<size_t>(active.top - active.begin) < bytes)
      fail_run(active.op, "LibTorch asks for {} bytes; got {} left of a workspace of {}; its "
               "declared workspace is too small for these shapes", bytes,
               active.top - active.begin, active.end - active.begin);
    active.top -= bytes;
    ++active.live;
    return {active.top, active.top, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t n) const override {
    default_copy_data(to, from, n);
  }

 private:
  c10::Allocator* base_;
};

}  // namespace

KernelScope::KernelScope(const char* op, std::byte* workspace, int64_t bytes) {
  active = {op, workspace, workspace + bytes, workspace + bytes, 0};
}
KernelScope::~KernelScope() { active = {}; }

void install_workspace_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: tensors of other libraries may outlive static destruction.
    c10::SetCPUAllocator(new WorkspaceAllocator(c10::GetCPUAllocator()), 255);
  });
}

int64_t stray_allocations() { return strays.load(std::memory_order_relaxed); }

}  // namespace hocket::runtime

namespace hocket::kernels {
const char* current_op() { return runtime::active.op ? runtime::active.op : ""; }
}  // namespace hocket::kernels

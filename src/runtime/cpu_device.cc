// SPDX-License-Identifier: Apache-2.0
// Implements: cpu_device (device.h). A launch runs the kernel; a record completes its event.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"
#include "runtime/device.h"

namespace hocket::runtime {

namespace {

/// Minimum size for large pages, 4 MiB. They save page faults and TLB misses; a refused advice
/// costs nothing.
constexpr int64_t kLargeEnough = 4 << 20;

std::byte* map(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* reserved = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    fail_run("memory", "can't reserve {} bytes: {}; try a smaller micro_batch or recompute", bytes,
             std::strerror(errno));
  }
  // Linux forms a large page only where the advice covers all of it. So it starts without, until
  // commit() advises it.
  madvise(reserved, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
  return static_cast<std::byte*>(reserved);
}

class CpuMemory : public Memory {
 public:
  explicit CpuMemory(int64_t bytes) : Memory(map(bytes), bytes) {}
  ~CpuMemory() override {
    if (data()) {
      munmap(data(), static_cast<size_t>(bytes()));
    }
  }
  void commit(program::Range range) override {
    if (range.end - range.begin >= kLargeEnough) {
      madvise(data() + range.begin, length(range), MADV_HUGEPAGE);
    }
  }
  void decommit(program::Range range) override {
    range.begin = round_up(range.begin, program::kPageBytes);
    if (range.end < bytes()) {
      range.end = range.end / program::kPageBytes * program::kPageBytes;
    }
    if (range.begin >= range.end) return;
    madvise(data() + range.begin, length(range), MADV_NOHUGEPAGE);
    madvise(data() + range.begin, length(range), MADV_DONTNEED);
  }
  int64_t resident_bytes() const override;

 private:
  size_t length(program::Range range) const {
    return static_cast<size_t>(std::min(range.end, bytes()) - range.begin);
  }
};

int64_t CpuMemory::resident_bytes() const {
  if (!data()) return 0;
  // Processed in pieces, since an arena can reserve far more address space than memory.
  constexpr int64_t kPiece = int64_t{1} << 30;
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> resident(static_cast<size_t>(std::min(bytes(), kPiece) / page + 1));
  int64_t pages = 0;
  for (int64_t begin = 0; begin < bytes(); begin += kPiece) {
    const int64_t length = std::min(kPiece, bytes() - begin);
    if (mincore(data() + begin, static_cast<size_t>(length), resident.data()) != 0) return bytes();
    for (int64_t i = 0; i < (length + page - 1) / page; ++i) {
      pages += resident[i] & 1;
    }
  }
  return pages * page;
}

/// Queue that runs kernels on the launching thread, hence in order.
class CpuQueue : public Queue {
 public:
  explicit CpuQueue(Progress& progress) : progress_(progress) {}
  Progress::Wait wait(const Event& event, std::chrono::milliseconds timeout) override {
    return event.wait(timeout);
  }
  void launch(kernels::KernelFn kernel, const kernels::KernelArgs& args, TaskTime* time) override {
    if (time == nullptr) {
      kernel(args);
      return;
    }
    time->start_ns = now_ns();
    kernel(args);
    time->end_ns = now_ns();
  }
  void record() override { progress_.advance(); }
  void drain() override {}

 private:
  Progress& progress_;
};

class Cpu : public Device {
 public:
  kernels::Device kind() const override { return kernels::Device::cpu; }
  std::unique_ptr<Memory> reserve(int64_t bytes) override {
    return std::make_unique<CpuMemory>(bytes);
  }
  std::unique_ptr<Queue> make_queue(Progress& progress, Failed) override {
    return std::make_unique<CpuQueue>(progress);
  }
  void copy(void* to, const void* from, int64_t bytes) const override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
};

}  // namespace

std::shared_ptr<Device> cpu_device() {
  static const auto device = std::make_shared<Cpu>();
  return device;
}

}  // namespace hocket::runtime

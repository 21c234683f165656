// SPDX-License-Identifier: Apache-2.0
// Interface between the runtime and a device: memory that is reserved and committed, queues that
// run kernels in order, events that report completion, and times of the device's clock. A task is
// complete when its event is: a queue may return from a launch long before the kernel runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/abi.h"
#include "program/memory.h"

namespace hocket::runtime {

/// Start and end of a task, in nanoseconds of the device's clock. The CPU's clock is the steady
/// clock.
struct TaskTime {
  int64_t start_ns = 0, end_ns = 0;
};

/// Address range of a device. Pages are allocated on first touch, and stay until they are
/// decommitted or the range is destroyed.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Announces that the range will be used. Elsewhere a touch allocates the smallest unit of the
  /// device.
  virtual void commit(program::Range range) = 0;
  /// Frees the whole pages of the range; their content is lost.
  virtual void decommit(program::Range range) = 0;
  /// Returns the bytes that are allocated.
  virtual int64_t resident_bytes() const = 0;

 protected:
  Memory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* const data_;
  const int64_t bytes_;
};

/// Number of completed events of a queue. The queue advances it; a waiting thread is woken only by
/// the event that it waits for.
class Progress {
 public:
  enum class Wait : uint8_t { reached, timed_out, stopped };

  int64_t count() const { return count_.load(std::memory_order_acquire); }
  /// Completes one more event; its work is visible to every thread that sees the new count. Called
  /// by one thread at a time.
  void advance() {
    // Both sequentially consistent: a thread that went to sleep before the increment is visible in
    // soonest_, and one that comes later sees the count.
    const int64_t now = count_.fetch_add(1) + 1;
    if (now >= soonest_.load()) {
      wake(now);
    }
  }
  /// Blocks until the count is reached, the timeout has passed, or stop() is called.
  Wait wait(int64_t count, std::chrono::milliseconds timeout);
  /// Ends all current and later waits, until reset().
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  /// Resets the count to 0. Requires: no work and no waits in progress.
  void reset();

 private:
  struct Sleeper;
  void wake(int64_t now);
  void find_soonest();

  // A cache line of its own: written by one thread, polled by others.
  alignas(64) std::atomic<int64_t> count_{0};
  std::atomic<int64_t> soonest_{INT64_MAX};  ///< lowest count that a sleeping thread waits for
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<Sleeper*> sleepers_;  // guarded by mutex_
};

/// Point in a queue's work, complete when everything launched before it is. It may be waited for
/// before it is recorded.
struct Event {
  Progress* progress = nullptr;
  int64_t count = 0;
  bool is_complete() const { return progress->count() >= count; }
  Progress::Wait wait(std::chrono::milliseconds timeout) const {
    return progress->wait(count, timeout);
  }
};

/// In-order queue of a device's work. Used by one host thread at a time.
class Queue {
 public:
  virtual ~Queue() = default;
  /// Makes later launches wait for the event. A queue that runs kernels inside launch() blocks
  /// here, no longer than `timeout`; others return at once.
  virtual Progress::Wait wait(const Event& event, std::chrono::milliseconds timeout) = 0;
  /// Runs the kernel after everything launched before. `args`, the memory it points to, and `time`
  /// (null: not measured) must live until a later event is complete or the queue is idle.
  virtual void launch(kernels::KernelFn kernel, const kernels::KernelArgs& args,
                      TaskTime* time) = 0;
  /// Records an event: the queue's Progress advances when everything launched so far is complete.
  virtual void record() = 0;
  /// Returns the handle on which kernels launch their work (KernelArgs::queue), such as a CUDA
  /// stream; null where launch() runs kernels itself.
  virtual void* handle() { return nullptr; }
  /// Blocks until no launched work is running. Once the queue's Progress is stopped, pending work
  /// is dropped.
  virtual void drain() = 0;
};

/// Called with an exception that a kernel threw after launch() had returned, before drain()
/// returns. Later kernels are not run.
using Failed = std::function<void(std::exception_ptr)>;

/// A device that holds memory and runs kernels.
class Device {
 public:
  virtual ~Device() = default;
  /// Kind of kernels that it runs.
  virtual kernels::Device kind() const = 0;
  /// Reserves an address range. Throws Error when addresses or memory are exhausted.
  virtual std::unique_ptr<Memory> reserve(int64_t bytes) = 0;
  /// Creates a queue. Requires: `progress` outlives it.
  virtual std::unique_ptr<Queue> make_queue(Progress& progress, Failed failed) = 0;
  /// Copies between host and device memory, or within either; complete on return. Requires: no
  /// launched work uses the memory. The host accesses device memory only through this call.
  virtual void copy(void* to, const void* from, int64_t bytes) const = 0;
};

/// Returns the device of this machine: process memory; launch() runs the kernel on the calling
/// thread, and an event is complete as soon as it is recorded.
std::shared_ptr<Device> cpu_device();

}  // namespace hocket::runtime

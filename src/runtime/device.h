// SPDX-License-Identifier: Apache-2.0
// What the runtime asks of a device: memory that is reserved and committed, queues that run kernels
// in order, events that tell when they have, and times of its own clock. A task is complete when
// its event is: a queue may return from a launch long before the kernel has run.
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

/// When a task ran, in nanoseconds of the device's clock. The clock of the CPU is the steady one.
struct TaskTime {
  int64_t start_ns = 0, end_ns = 0;
};

/// A range of addresses of a device. What lies behind them is taken when it is touched, and stays
/// until it is decommitted or the range goes.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// The range is meant to be used. Elsewhere a touch takes as little as the device can give.
  virtual void commit(program::Range range) = 0;
  /// Gives back the whole pages of the range; their content is lost.
  virtual void decommit(program::Range range) = 0;
  /// Bytes that are taken.
  virtual int64_t resident_bytes() const = 0;

 protected:
  Memory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* const data_;
  const int64_t bytes_;
};

/// How many of the events of a queue are complete. The queue advances it; whoever waits for one
/// event is woken by that event and by no other.
class Progress {
 public:
  enum class Wait : uint8_t { reached, timed_out, stopped };

  int64_t count() const { return count_.load(std::memory_order_acquire); }
  /// One more event is complete, and what ran before it is seen by whoever sees the count. Called
  /// by one thread at a time.
  void advance() {
    // Sequentially consistent, both: who went to sleep before the count was raised is seen in
    // soonest_, who comes after it sees the count.
    const int64_t now = count_.fetch_add(1) + 1;
    if (now >= soonest_.load()) {
      wake(now);
    }
  }
  Wait wait(int64_t count, std::chrono::milliseconds timeout);
  /// Ends all waits, now and later, until reset().
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  /// Back to 0. Nothing may run or wait.
  void reset();

 private:
  struct Sleeper;
  void wake(int64_t now);
  void find_soonest();

  // A cache line of its own: written by one thread, polled by others.
  alignas(64) std::atomic<int64_t> count_{0};
  std::atomic<int64_t> soonest_{INT64_MAX};  ///< least count that a sleeper waits for
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<Sleeper*> sleepers_;  // guarded by mutex_
};

/// A point in the work of a queue: complete when everything launched before it is. It may be waited
/// for before it is recorded.
struct Event {
  Progress* progress = nullptr;
  int64_t count = 0;
  bool is_complete() const { return progress->count() >= count; }
  Progress::Wait wait(std::chrono::milliseconds timeout) const {
    return progress->wait(count, timeout);
  }
};

/// Work of a device, in order. Used by one host thread at a time.
class Queue {
 public:
  virtual ~Queue() = default;
  /// What is launched from now on begins when the event is complete. A queue that runs kernels
  /// inside launch() waits here, no longer than `timeout`; others return at once.
  virtual Progress::Wait wait(const Event& event, std::chrono::milliseconds timeout) = 0;
  /// Runs the kernel after all that was launched before. `args`, what they point to and `time`
  /// (null: not wanted) must live until an event after it is complete or the queue is idle.
  virtual void launch(kernels::KernelFn kernel, const kernels::KernelArgs& args,
                      TaskTime* time) = 0;
  /// Records an event: the queue's Progress advances when all that was launched is complete.
  virtual void record() = 0;
  /// Returns when nothing that was launched runs any more. Once the queue's Progress is stopped,
  /// what has not begun is dropped.
  virtual void drain() = 0;
};

/// Called with what a kernel threw after launch() had returned, before drain() returns. Nothing
/// behind that kernel is run.
using Failed = std::function<void(std::exception_ptr)>;

class Device {
 public:
  virtual ~Device() = default;
  /// Whose kernels run on it.
  virtual kernels::Device kind() const = 0;
  /// Throws Error when the addresses or the memory are exhausted.
  virtual std::unique_ptr<Memory> reserve(int64_t bytes) = 0;
  /// `progress` outlives the queue.
  virtual std::unique_ptr<Queue> make_queue(Progress& progress, Failed failed) = 0;
  /// Copies between memory of the device and of the host, or inside either; done when it returns.
  /// Nothing that was launched still works on it. The host touches the device's memory in no other
  /// way.
  virtual void copy(void* to, const void* from, int64_t bytes) const = 0;
};

/// This machine: memory of the process; launch() runs the kernel on the calling thread, and an
/// event is complete as soon as it is recorded.
std::shared_ptr<Device> cpu_device();

}  // namespace hocket::runtime

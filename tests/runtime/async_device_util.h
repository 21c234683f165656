// SPDX-License-Identifier: Apache-2.0
// Device that runs kernels later, on a thread per queue, asynchronously to the host: kernels start
// after random delays, and their events complete later still.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/device.h"

namespace hocket::fake {

struct AsyncOptions {
  uint64_t seed = 1;                          ///< of the delays
  std::chrono::microseconds most_delay{100};  ///< of a kernel, and of an event
  /// Fault injection: a queue that waits for an event continues when the event is recorded, as if
  /// kernels ran inside launch().
  bool done_at_launch = false;
};

class AsyncDevice : public runtime::Device {
 public:
  explicit AsyncDevice(AsyncOptions options) : options_(options) {}
  kernels::Device kind() const override { return kernels::Device::cpu; }
  std::unique_ptr<runtime::Memory> reserve(int64_t bytes) override {
    return runtime::cpu_device()->reserve(bytes);
  }
  std::unique_ptr<runtime::Queue> make_queue(runtime::Progress& progress,
                                             runtime::Failed failed) override;
  void copy(void* to, const void* from, int64_t bytes) const override {
    runtime::cpu_device()->copy(to, from, bytes);
  }
  /// Launches that had not run when launch() returned.
  int64_t late() const { return late_; }

 private:
  friend class AsyncQueue;
  bool is_recorded(const runtime::Event& event) const;

  const AsyncOptions options_;
  std::atomic<int> queues_{0};
  std::atomic<int64_t> late_{0};
  mutable std::mutex mutex_;
  std::map<const runtime::Progress*, int64_t> recorded_;  // guarded by mutex_
};

}  // namespace hocket::fake

// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/async_device_util.h"

#include <condition_variable>
#include <deque>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

namespace hocket::fake {

using runtime::Event;
using runtime::Progress;

class AsyncQueue : public runtime::Queue {
 public:
  AsyncQueue(AsyncDevice& device, uint64_t number, Progress& progress, runtime::Failed failed)
      : device_(device),
        number_(number),
        progress_(progress),
        failed_(std::move(failed)),
        thread_([this] { main(); }) {}
  ~AsyncQueue() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  Progress::Wait wait(const Event& event, std::chrono::milliseconds timeout) override {
    if (!device_.options_.done_at_launch) {
      push({.kind = Work::Kind::wait, .event = event});
      return Progress::Wait::reached;
    }
    const int64_t deadline = now_ns() + timeout.count() * 1'000'000;
    while (!event.is_complete() && !device_.is_recorded(event)) {
      if (progress_.stopped()) return Progress::Wait::stopped;
      if (now_ns() > deadline) return Progress::Wait::timed_out;
      std::this_thread::yield();
    }
    return Progress::Wait::reached;
  }
  void* handle() override { return this; }
  void launch(kernels::KernelFn kernel, const kernels::KernelArgs& args,
              runtime::TaskTime* time) override {
    const int64_t before = ran_;
    push({.kind = Work::Kind::launch, .kernel = kernel, .args = &args, .time = time});
    device_.late_ += ran_ == before;
  }
  void record() override {
    push({.kind = Work::Kind::record});
    std::lock_guard lock(device_.mutex_);
    ++device_.recorded_[&progress_];
  }
  void drain() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty() && !busy_; });
    std::lock_guard other(device_.mutex_);
    device_.recorded_[&progress_] = 0;  // the next step counts from 0
  }

 private:
  struct Work {
    enum class Kind { wait, launch, record } kind;
    Event event{};
    kernels::KernelFn kernel = nullptr;
    const kernels::KernelArgs* args = nullptr;
    runtime::TaskTime* time = nullptr;
  };

  void push(Work work) {
    std::lock_guard lock(mutex_);
    work_.push_back(work);
    changed_.notify_all();
  }

  void main() {
    for (;;) {
      Work work{};
      {
        std::unique_lock lock(mutex_);
        busy_ = false;
        changed_.notify_all();
        changed_.wait(lock, [&] { return ending_ || !work_.empty(); });
        if (work_.empty()) return;
        work = work_.front();
        work_.pop_front();
        busy_ = true;
      }
      if (!ended_early_ && !progress_.stopped()) {
        run(work);
      }
    }
  }

  void run(const Work& work) {
    switch (work.kind) {
      case Work::Kind::wait:
        ended_early_ = work.event.wait(std::chrono::hours(1)) != Progress::Wait::reached;
        return;
      case Work::Kind::record:
        nap();
        progress_.advance();
        return;
      case Work::Kind::launch:
        nap();
        // Tasks get the queue that they are launched on; fills and delays need none.
        HOCKET_CHECK(work.time == nullptr || work.args->queue == this, "a task of another queue");
        const int64_t start = now_ns();
        try {
          work.kernel(*work.args);
        } catch (...) {
          failed_(std::current_exception());
          return;
        }
        if (work.time != nullptr) {
          *work.time = {start, now_ns()};
        }
        ++ran_;
    }
  }

  /// Sleeps every other time, so that kernels sometimes run before the host continues.
  void nap() {
    const uint64_t r = random_bits(device_.options_.seed, number_, naps_++);
    if (r % 2 == 0) return;
    const auto most = static_cast<uint64_t>(device_.options_.most_delay.count());
    std::this_thread::sleep_for(std::chrono::microseconds(r / 2 % (most + 1)));
  }

  AsyncDevice& device_;
  const uint64_t number_;
  Progress& progress_;
  const runtime::Failed failed_;
  uint64_t naps_ = 0;
  bool ended_early_ = false;  ///< a wait failed: nothing after it may run
  std::atomic<int64_t> ran_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;  // guarded by mutex_, like the two below
  bool busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

std::unique_ptr<runtime::Queue> AsyncDevice::make_queue(Progress& progress,
                                                        runtime::Failed failed) {
  return std::make_unique<AsyncQueue>(*this, static_cast<uint64_t>(queues_++), progress,
                                      std::move(failed));
}

bool AsyncDevice::is_recorded(const Event& event) const {
  std::lock_guard lock(mutex_);
  const auto found = recorded_.find(event.progress);
  return found != recorded_.end() && found->second >= event.count;
}

}  // namespace hocket::fake

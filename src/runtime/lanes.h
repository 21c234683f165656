// SPDX-License-Identifier: Apache-2.0
// The lanes of a rank: a thread and a queue each. They run a step of one program at a time, of
// whatever program is given to them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/error.h"
#include "kernels/backend.h"
#include "program/program.h"
#include "runtime/device.h"

namespace hocket::runtime {

class Lanes;

/// A step of a program, as the lanes see it.
class Step {
 public:
  virtual ~Step() = default;
  /// Tasks of the lane.
  virtual size_t size(int lane) const = 0;
  virtual std::string task_name(int lane, size_t position) const = 0;
  /// Issues the tasks of the lane, in order, and records an event after each; called by the lane's
  /// thread. Tells the lanes what went wrong, and returns early then, or when they are cancelled.
  virtual void run(int lane, Lanes& lanes) = 0;
};

/// How a rank runs.
struct RankOptions {
  int threads = 1;                             ///< intra-op threads of lanes that run kernels
  std::chrono::milliseconds timeout{300'000};  ///< of every wait
  std::shared_ptr<Device> device = cpu_device();
  /// Tests: step buffers hold NaN before their first write and after their last use, outputs until
  /// they are written.
  bool poison = false;
};

/// Shared with the lane threads: one that hangs in a kernel is left to itself, and what it uses
/// stays as long as it does.
class Lanes : public std::enable_shared_from_this<Lanes> {
 public:
  Lanes(int32_t rank, std::shared_ptr<kernels::Backend> backend, RankOptions options);

  /// Makes the lanes that the step has tasks in, unless they are there.
  void make_for(const Step& step);
  /// Error if a step runs. After a step that failed, nothing is run any more: `wait` says why.
  void start(std::shared_ptr<Step> step);
  /// Blocks until the step is over, and throws what went wrong.
  void wait();
  /// Makes the lanes stop at their next task, in this and every later step.
  void cancel();
  /// Cancels the step if it is this one that runs, and waits for its end, but no longer than a
  /// second for a kernel that hangs.
  void leave(const Step& step);
  bool is_running() const;
  /// Tasks that have begun and not ended, by name; between steps that the last one has ended.
  std::string doing() const;
  /// Ends the threads; those of lanes that hang in a kernel are left to themselves.
  void end_threads();
  /// Called from a lane when a task fails, before the lanes stop (so that peers can be told).
  void set_on_error(std::function<void(const std::string&)> on_error);

  // For steps.
  Queue& queue(int lane) { return *lanes_[lane].queue; }
  /// Complete when the first `count` tasks of the lane are.
  Event event(int lane, int64_t count) { return {&lanes_[lane].progress, count}; }
  const char* lane_of(const Event& event) const;
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void fail(const std::string& task, const std::exception_ptr& exception);

 private:
  struct Lane {
    Progress progress;
    std::unique_ptr<Queue> queue;
    std::thread thread;
    std::condition_variable begins;
    bool running = false;  // guarded by mutex_: not through with the step
  };

  void main(int lane);
  void fail_behind_launch(int lane, const std::exception_ptr& exception);
  std::string unfinished() const;
  void stop_lanes();
  void declare_hung(std::unique_lock<std::mutex>& lock);

  const int32_t rank_;
  const std::shared_ptr<kernels::Backend> backend_;
  const RankOptions options_;
  Lane lanes_[program::kNumLanes];

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::shared_ptr<Step> step_;              // guarded by mutex_, as all below
  int running_ = 0;                         // lanes that are not through with the step
  int64_t steps_ = 0;                       // started
  bool stopping_ = false;                   // the threads are to end
  bool hung_ = false;                       // a task has not come back
  std::string error_;                       // the first one
  Error::Cause cause_ = Error::Cause::own;  // of that one
  std::function<void(const std::string&)> on_error_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace hocket::runtime

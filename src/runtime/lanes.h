// SPDX-License-Identifier: Apache-2.0
// Lanes of a rank: a thread and a queue each. They run one step of one program at a time.
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

/// Step of a program, as seen by the lanes.
class Step {
 public:
  virtual ~Step() = default;
  /// Number of tasks in the lane.
  virtual size_t size(int lane) const = 0;
  virtual std::string task_name(int lane, size_t position) const = 0;
  /// Issues the lane's tasks in order, on the lane's thread, and records an event after each.
  /// Reports errors by Lanes::fail, and returns early on error or cancellation.
  virtual void run(int lane, Lanes& lanes) = 0;
};

/// Execution options of a rank.
struct RankOptions {
  int threads = 1;                             ///< intra-op threads of lanes that run kernels
  std::chrono::milliseconds timeout{300'000};  ///< limit of every wait
  std::shared_ptr<Device> device = cpu_device();
  /// For tests: fills step buffers with NaN before their first write and after their last use, and
  /// outputs until they are written.
  bool poison = false;
};

/// Threads and queues of a rank. Ownership is shared with the lane threads: a thread that hangs in
/// a kernel is detached, and keeps its data alive.
class Lanes : public std::enable_shared_from_this<Lanes> {
 public:
  Lanes(int32_t rank, std::shared_ptr<kernels::Backend> backend, RankOptions options);

  /// Creates the lanes that have tasks in the step, if they do not exist.
  void make_for(const Step& step);
  /// Starts a step. Throws Error if one is running. After a failed step nothing runs any more:
  /// `wait` throws the reason.
  void start(std::shared_ptr<Step> step);
  /// Blocks until the step has ended, and throws its error.
  void wait();
  /// Stops the lanes at their next task, in this and every later step.
  void cancel();
  /// Cancels the step if it is the running one, and waits for its end; at most a second if a kernel
  /// hangs.
  void leave(const Step& step);
  bool is_running() const;
  /// Returns the names of tasks that have begun and not ended; between steps, a text that says that
  /// the last step has ended.
  std::string doing() const;
  /// Joins the threads; those of lanes that hang in a kernel are detached.
  void end_threads();
  /// Sets a callback for failures of tasks. A lane calls it before the lanes stop, so that peers
  /// can be notified.
  void set_on_error(std::function<void(const std::string&)> on_error);

  // Interface for Step.
  Queue& queue(int lane) { return *lanes_[lane].queue; }
  /// Returns the event of the first `count` tasks of the lane.
  Event event(int lane, int64_t count) { return {&lanes_[lane].progress, count}; }
  const char* lane_of(const Event& event) const;
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void fail(const std::string& task, const std::exception_ptr& exception);

 private:
  struct LaneThread {
    Progress progress;
    std::unique_ptr<Queue> queue;
    std::thread thread;
    std::condition_variable begins;
    bool running = false;  // guarded by mutex_: not done with the step
  };

  void main(int lane);
  void fail_behind_launch(int lane, const std::exception_ptr& exception);
  std::string unfinished() const;
  void stop_lanes();
  void declare_hung(std::unique_lock<std::mutex>& lock);

  const int32_t rank_;
  const std::shared_ptr<kernels::Backend> backend_;
  const RankOptions options_;
  LaneThread lanes_[program::kNumLanes];

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::shared_ptr<Step> step_;              // guarded by mutex_, like all below
  int running_ = 0;                         // lanes that are not done with the step
  int64_t steps_ = 0;                       // number of steps started
  bool stopping_ = false;                   // threads must end
  bool hung_ = false;                       // a task has not returned
  std::string error_;                       // first error
  Error::Cause cause_ = Error::Cause::own;  // cause of that error
  std::function<void(const std::string&)> on_error_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace hocket::runtime

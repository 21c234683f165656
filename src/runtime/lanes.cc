// SPDX-License-Identifier: Apache-2.0
#include "runtime/lanes.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/scheduling.h"
#include "base/text.h"
#include "runtime/memory.h"

namespace hocket::runtime {

namespace {

/// Returns whether the lane communicates. Other lanes run kernels, with the threads of the rank.
bool is_link(program::Lane lane) {
  return lane >= program::Lane::intra && lane <= program::Lane::inter_rx;
}
const char* lane_name(int lane) { return to_string(static_cast<program::Lane>(lane)); }

}  // namespace

Lanes::Lanes(int32_t rank, std::shared_ptr<kernels::Backend> backend, RankOptions options)
    : rank_(rank), backend_(std::move(backend)), options_(std::move(options)) {}

const char* Lanes::lane_of(const Event& event) const {
  int lane = 0;
  while (&lanes_[lane].progress != event.progress) {
    ++lane;
  }
  return lane_name(lane);
}

void Lanes::make_for(const Step& step) {
  for (int i = 0; i < program::kNumLanes; ++i) {
    LaneThread& lane = lanes_[i];
    if (step.size(i) == 0 || lane.thread.joinable()) continue;
    lane.queue = device_of_lane(static_cast<program::Lane>(i), options_.device)
                     ->make_queue(lane.progress, [this, i](std::exception_ptr exception) {
                       fail_behind_launch(i, exception);
                     });
    lane.thread = std::thread([self = shared_from_this(), i] { self->main(i); });
  }
}

void Lanes::start(std::shared_ptr<Step> step) {
  std::lock_guard lock(mutex_);
  if (cancelled_) return;
  if (running_ > 0) {
    fail_run("executor",
             "rank {} runs a step already; expected one program at a time; try to wait for its end",
             rank_);
  }
  for (int i = 0; i < program::kNumLanes; ++i) {
    if (step->size(i) == 0) continue;
    lanes_[i].progress.reset();
    lanes_[i].running = true;
    ++running_;
  }
  ++steps_;
  step_ = std::move(step);
  for (LaneThread& lane : lanes_) {
    if (lane.running) {
      lane.begins.notify_one();
    }
  }
}

void Lanes::wait() {
  // Waits inside lanes have timeouts of their own. A step that completes no task for longer than
  // that hangs in a kernel.
  std::unique_lock lock(mutex_);
  const auto window = options_.timeout + std::chrono::seconds(1);
  int64_t before = -1;
  while (!hung_ && !ended_.wait_for(lock, window, [&] { return running_ == 0; })) {
    int64_t progress = 0;
    for (const LaneThread& lane : lanes_) {
      progress += lane.progress.count() + (lane.running ? 0 : 1);
    }
    if (progress == std::exchange(before, progress)) {
      declare_hung(lock);
    }
  }
  if (running_ == 0) {
    step_ = nullptr;
  }
  if (!error_.empty()) throw Error(Error::Kind::kRun, "run", error_, cause_);
  if (cancelled_) {
    throw Error(Error::Kind::kRun, "run", fmt::format("rank {}: the step was cancelled", rank_),
                Error::Cause::stopped);
  }
}

/// Marks the step as hung and reports it. Releases the lock during the callback.
void Lanes::declare_hung(std::unique_lock<std::mutex>& lock) {
  hung_ = true;
  const auto window = options_.timeout + std::chrono::seconds(1);
  const std::string text =
      fmt::format("rank {}: {} has not ended, and no task has completed for {} s", rank_,
                  unfinished(), std::chrono::duration<double>(window).count());
  error_ = error_.empty() ? text : error_ + "; " + text;
  cause_ = Error::Cause::own;
  stop_lanes();
  const auto on_error = on_error_;
  lock.unlock();
  if (on_error) {
    on_error(text);
  }
  lock.lock();
}

std::string Lanes::doing() const {
  std::lock_guard lock(mutex_);
  if (running_ > 0) return unfinished();
  return steps_ > 0 ? fmt::format("the end of its step {}", steps_) : "";
}

/// Returns the names of tasks that have begun and not ended. Requires: mutex_ is held.
std::string Lanes::unfinished() const {
  std::string names;
  for (int i = 0; i < program::kNumLanes; ++i) {
    const size_t next = static_cast<size_t>(lanes_[i].progress.count());
    if (lanes_[i].running && next < step_->size(i)) {
      names += (names.empty() ? "" : ", ") + step_->task_name(i, next);
    }
  }
  return names;
}

void Lanes::cancel() {
  std::lock_guard lock(mutex_);
  stop_lanes();
}

/// Requires: mutex_ is held.
void Lanes::stop_lanes() {
  cancelled_ = true;
  for (LaneThread& lane : lanes_) {
    lane.progress.stop();
  }
}

void Lanes::leave(const Step& step) {
  {
    std::lock_guard lock(mutex_);
    if (step_.get() != &step) return;
    if (running_ == 0) {
      step_ = nullptr;
      return;
    }
  }
  cancel();
  std::unique_lock lock(mutex_);
  const auto over = [&] { return running_ == 0; };
  if (hung_) {
    ended_.wait_for(lock, std::chrono::seconds(1), over);
  } else {
    ended_.wait(lock, over);
  }
  step_ = nullptr;
}

bool Lanes::is_running() const {
  std::lock_guard lock(mutex_);
  return running_ > 0;
}

void Lanes::end_threads() {
  // Joins the threads one by one, between steps. A lane that hangs in a kernel has a second to
  // return; otherwise all threads are detached. They share ownership of this object, and end by
  // themselves later.
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    for (LaneThread& lane : lanes_) {
      lane.begins.notify_one();
    }
    if (hung_ && !ended_.wait_for(lock, std::chrono::seconds(1), [&] { return running_ == 0; })) {
      on_error_ = nullptr;
      for (LaneThread& lane : lanes_) {
        if (lane.thread.joinable()) {
          lane.thread.detach();
        }
      }
      return;
    }
  }
  for (LaneThread& lane : lanes_) {
    if (lane.thread.joinable()) {
      lane.thread.join();
    }
    lane.queue.reset();
  }
  std::lock_guard lock(mutex_);
  stopping_ = false;
}

void Lanes::set_on_error(std::function<void(const std::string&)> on_error) {
  std::lock_guard lock(mutex_);
  on_error_ = std::move(on_error);
}

void Lanes::main(int index) {
  // Sleeps between steps. Releases the step before it reports that the lane is done: after the last
  // lane only the executor owns the step.
  const bool link = is_link(static_cast<program::Lane>(index));
  backend_->enter_thread(link ? 1 : options_.threads);
  if (link) {
    run_when_woken();
  }
  set_log_rank(rank_);
  LaneThread& lane = lanes_[index];
  for (;;) {
    std::shared_ptr<Step> step;
    int64_t number = 0;
    {
      std::unique_lock lock(mutex_);
      lane.begins.wait(lock, [&] { return stopping_ || lane.running; });
      if (!lane.running) return;
      step = step_;
      number = steps_;
    }
    const int64_t began = now_ns();
    step->run(index, *this);
    lane.queue->drain();
    log_debug("step {}: lane {} ran {} of {} tasks in {}", number, lane_name(index),
              lane.progress.count(), step->size(index),
              human_time(static_cast<double>(now_ns() - began) * 1e-9));
    step.reset();
    std::lock_guard lock(mutex_);
    lane.running = false;
    if (--running_ == 0) {
      ended_.notify_all();
    }
  }
}

void Lanes::fail(const std::string& task, const std::exception_ptr& exception) {
  std::string what;
  Error::Cause cause = Error::Cause::own;
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    what = error.what();
    cause = error.cause();
  } catch (const std::exception& error) {
    what = error.what();
  }
  const std::string text = fmt::format("rank {}: {}: {}", rank_, task, what);
  std::function<void(const std::string&)> on_error;
  {
    // One critical section: errors of other lanes after the stop are consequences, not the cause.
    std::lock_guard lock(mutex_);
    if (error_.empty()) {
      error_ = text;
      cause_ = cause;
    }
    stop_lanes();
    on_error = on_error_;
  }
  if (on_error) {
    on_error(text);
  }
}

/// Reports a task that failed after its launch. Tasks complete in launch order, so it is the next
/// one to complete.
void Lanes::fail_behind_launch(int lane, const std::exception_ptr& exception) {
  std::string task;
  {
    std::lock_guard lock(mutex_);
    task = step_ ? step_->task_name(lane, static_cast<size_t>(lanes_[lane].progress.count()))
                 : "a task";
  }
  fail(task, exception);
}

}  // namespace hocket::runtime

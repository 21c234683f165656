// SPDX-License-Identifier: Apache-2.0
#include "serve/engine.h"

#include <chrono>
#include <utility>

#include "base/error.h"

namespace hocket::serve {

namespace {
constexpr std::chrono::seconds kIdleCall(2);
constexpr const char* kShutDown = "the engine is shut down";
}  // namespace

Engine::Engine(Stepper& stepper, const data::Tokenizer* tokenizer, SchedulerOptions options,
               std::function<void()> while_idle)
    : stepper_(stepper),
      scheduler_(stepper, tokenizer,
                 [&] {
                   SchedulerOptions unlimited = options;
                   unlimited.max_waiting =
                       0;  // counted here, where the caller waits for the answer
                   return unlimited;
                 }()),
      max_waiting_(options.max_waiting),
      while_idle_(std::move(while_idle)),
      thread_([this] { loop(); }) {}

Engine::~Engine() { stop(); }

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  came_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

RequestId Engine::submit(Request request, OnUpdate on_update) {
  Scheduler::check(request, stepper_.limits());
  RequestId id;
  {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) fail_run("engine", "{}", error_);
    if (ends_) fail_run("engine", "{}", kShutDown);
    if (max_waiting_ > 0 && stats_.waiting + submitted_ >= max_waiting_) throw Busy();
    id = ++last_id_;
    queue_.push_back({.id = id, .request = std::move(request), .on_update = std::move(on_update)});
    ++submitted_;
    busy_ = true;
  }
  came_.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({.id = id, .cancels = true, .request = {}, .on_update = nullptr});
  }
  came_.notify_one();
}

Stats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.waiting += submitted_;
  return stats;
}

std::string Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

bool Engine::is_shut_down() const {
  const std::lock_guard lock(mutex_);
  return ends_ && error_.empty();
}

void Engine::wait_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return !busy_ || !error_.empty(); });
  if (!error_.empty()) fail_run("engine", "{}", error_);
}

bool Engine::drain_queue() {
  std::vector<Command> commands;
  {
    std::unique_lock lock(mutex_);
    stats_ = scheduler_.stats();
    if (scheduler_.idle() && queue_.empty()) {
      busy_ = false;
      idle_.notify_all();
      while (!came_.wait_for(lock, kIdleCall, [&] { return ends_ || !queue_.empty(); })) {
        if (!while_idle_) continue;
        lock.unlock();
        while_idle_();
        lock.lock();
      }
    }
    if (ends_) return false;
    commands = std::exchange(queue_, {});
    stats_.waiting += std::exchange(submitted_, 0);
  }
  for (Command& command : commands) {
    if (command.cancels) {
      scheduler_.cancel(command.id);
    } else {
      scheduler_.submit(command.id, std::move(command.request), std::move(command.on_update));
    }
  }
  return true;
}

void Engine::loop() {
  try {
    while (drain_queue()) {
      scheduler_.step();
    }
    end_all(kShutDown);
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = error.what();
    }
    end_all(error.what());
  }
}

void Engine::end_all(const std::string& error) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands = std::exchange(queue_, {});
    submitted_ = 0;
  }
  scheduler_.fail_all(error);
  for (const Command& command : commands) {
    if (!command.on_update) continue;
    Update update;
    update.finish = Finish::failed;
    update.error = error;
    command.on_update(update);
  }
  const std::lock_guard lock(mutex_);
  stats_ = scheduler_.stats();
  busy_ = false;
  idle_.notify_all();
}

}  // namespace hocket::serve

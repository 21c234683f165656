// SPDX-License-Identifier: Apache-2.0
// The engine that answers requests: a thread that runs the scheduler's steps.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/request.h"
#include "serve/scheduler.h"

namespace hocket::serve {

class Engine : public Service {
 public:
  /// `tokenizer` as of Scheduler. `while_idle`, if any, is called every few seconds on the engine's
  /// thread while there is nothing to do. Stepper and tokenizer outlive the engine.
  Engine(Stepper& stepper, const data::Tokenizer* tokenizer, SchedulerOptions options,
         std::function<void()> while_idle = nullptr);
  ~Engine() override;  ///< as stop()

  RequestId submit(Request request, OnUpdate on_update) override;
  void cancel(RequestId id) override;
  Stats stats() const override;
  std::string failure() const override;
  bool is_shut_down() const override;
  int64_t max_model_len() const override { return stepper_.limits().longest; }
  int64_t vocab_size() const override { return stepper_.limits().vocab; }

  /// Blocks until no request is left; throws the error of a step that failed.
  void wait_idle();
  /// Ends all requests as failed, with their last updates; none is answered any more.
  void stop();

 private:
  void loop();
  /// Takes the queued submissions and cancellations; false: shut down.
  bool drain_queue();
  void end_all(const std::string& error);

  /// A submission or a cancellation.
  struct Command {
    RequestId id = 0;
    bool cancels = false;
    Request request;
    OnUpdate on_update;
  };

  Stepper& stepper_;
  Scheduler scheduler_;
  const int64_t max_waiting_;
  const std::function<void()> while_idle_;
  mutable std::mutex mutex_;
  std::condition_variable came_, idle_;
  std::vector<Command> queue_;
  int64_t submitted_ = 0;  ///< of queue_: the others cancel
  Stats stats_;            ///< as of the last step
  std::string error_;
  bool ends_ = false, busy_ = false;
  RequestId last_id_ = 0;
  std::thread thread_;
};

}  // namespace hocket::serve

// SPDX-License-Identifier: Apache-2.0
// The texts that one HTTP request asks for, on the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "serve/metrics.h"
#include "serve/request.h"

namespace hocket::serve {

struct TextUpdate {
  size_t index = 0;  ///< of the request
  Update update = {};
  int64_t at_ns = 0;
};

/// The texts of a request. Each is made when it is submitted, so that others hold no memory.
struct TextRequests {
  size_t count = 0;
  std::function<Request(size_t index)> make;  ///< throws Refusal
};

class Texts {
 public:
  /// Submits the requests, those that find the queue full when others have ended. `n`: texts of
  /// each prompt, for metrics. Throws Refusal: 429 if not even the first one finds a place, 400 for
  /// a request that can never run, 500 for an engine that has failed, 503 for one that was shut
  /// down.
  Texts(Service& service, Metrics& metrics, TextRequests requests, int64_t n);
  /// Cancels those that still run.
  ~Texts();
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  /// Returns what came since the last time; waits for it, at most so long.
  std::vector<TextUpdate> wait(std::chrono::milliseconds most);
  bool done() const { return running_ == 0; }
  double seconds() const;  ///< since the request came

 private:
  struct Inbox;
  struct Progress {
    RequestId id = 0;
    int64_t prompt_tokens = 0, max_tokens = 0, tokens = 0;
    int64_t started_ns = 0, first_ns = 0, last_ns = 0;
    bool over = false;
  };
  /// Submits those that wait, until the queue is full.
  void submit_waiting();
  void observe(const TextUpdate& received);
  void end(Progress* text, Finish finish, int64_t at_ns);

  Service& service_;
  Metrics& metrics_;
  const int64_t n_, start_ns_;
  const TextRequests requests_;
  size_t next_ = 0;              ///< of the requests to be submitted
  std::optional<Request> made_;  ///< that one, if it found the queue full
  std::vector<Progress> texts_;
  size_t running_ = 0;
  std::shared_ptr<Inbox> inbox_;  ///< the engine holds it, too
};

}  // namespace hocket::serve

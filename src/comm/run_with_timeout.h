// SPDX-License-Identifier: Apache-2.0
// Time limit for work that may never end.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "base/scheduling.h"

namespace hocket::comm {

/// Runs the work on a thread of its own and returns its result; nothing if it exceeds the limit.
/// The thread is then abandoned, with everything that it holds. Rethrows exceptions of the work.
template <class T>
std::optional<T> run_with_timeout(std::chrono::milliseconds limit, std::function<T()> work) {
  const auto promise = std::make_shared<std::promise<T>>();
  std::future<T> result = promise->get_future();
  std::thread([promise, work = std::move(work)]() mutable {
    run_when_woken();  // inherited by the threads that it starts
    try {
      T made = work();
      work = nullptr;  // releases everything it holds before others continue
      promise->set_value(std::move(made));
    } catch (...) {
      work = nullptr;
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace hocket::comm

// SPDX-License-Identifier: Apache-2.0
// Work that may never end, with a limit.
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

/// What the work gives, on a thread of its own; nothing if it has not ended within the limit: it is
/// left behind, with what it holds. Throws what it throws.
template <class T>
std::optional<T> within(std::chrono::milliseconds limit, std::function<T()> work) {
  const auto promise = std::make_shared<std::promise<T>>();
  std::future<T> result = promise->get_future();
  std::thread([promise, work = std::move(work)]() mutable {
    run_when_woken();  // and so will the threads that it starts
    try {
      T made = work();
      work = nullptr;  // holds nothing any more when others go on
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

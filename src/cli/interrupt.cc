// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <atomic>
#include <cstdint>
#include <ctime>

#include "base/signals.h"

namespace hocket::cli {

namespace {

/// Time of the first signal in ns since boot; 0 if none came.
std::atomic<int64_t> came_ns{0};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

/// Calls only async-signal-safe functions.
void take(int signal) {
  const int64_t now = now_ns();
  int64_t before = 0;
  if (came_ns.compare_exchange_strong(before, now) ||
      now - before < std::chrono::nanoseconds(kSameSignal).count())
    return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

Interrupt::Interrupt() {
  came_ns = 0;
  struct sigaction action {};
  action.sa_handler = take;
  sigaction(SIGINT, &action, &before_[0]);
  sigaction(SIGTERM, &action, &before_[1]);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &before_[0], nullptr);
  sigaction(SIGTERM, &before_[1], nullptr);
}

bool Interrupt::came() { return came_ns.load() != 0; }

}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <atomic>

namespace hocket::cli {

namespace {

std::atomic<bool> interrupted{false};

}  // namespace

Interrupt::Interrupt() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_[0]);
  sigaction(SIGTERM, &action, &before_[1]);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &before_[0], nullptr);
  sigaction(SIGTERM, &before_[1], nullptr);
}

bool Interrupt::came() { return interrupted.load(); }

}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
#include "base/stop.h"

#include <utility>

namespace hocket {

namespace {

thread_local const std::function<bool()>* asked_of_thread = nullptr;

}  // namespace

StopWhen::StopWhen(std::function<bool()> asked)
    : asked_(std::move(asked)), before_(std::exchange(asked_of_thread, &asked_)) {}

StopWhen::~StopWhen() { asked_of_thread = before_; }

void stop_if_asked() {
  if (asked_of_thread && (*asked_of_thread)()) throw Stopped();
}

}  // namespace hocket

// SPDX-License-Identifier: Apache-2.0
// Cancellation of long work: the caller gives a condition, and the work checks it between its steps
// at any depth.
#pragma once

#include <functional>

namespace hocket {

/// Thrown by stop_if_asked(), and caught by the creator of the StopWhen. Not an Error: nothing is
/// wrong.
struct Stopped {};

/// While it lives, work of this thread is given up as soon as `asked` is true.
class StopWhen {
 public:
  explicit StopWhen(std::function<bool()> asked);
  ~StopWhen();
  StopWhen(const StopWhen&) = delete;
  StopWhen& operator=(const StopWhen&) = delete;

 private:
  std::function<bool()> asked_;
  const std::function<bool()>* before_;
};

/// Throws Stopped if this thread's innermost StopWhen is asked to. Called between steps of work
/// that may take seconds.
void stop_if_asked();

}  // namespace hocket

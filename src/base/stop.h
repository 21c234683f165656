// SPDX-License-Identifier: Apache-2.0
// Long work that nobody waits for any more: who starts it says how to ask for that, and the work
// asks between its steps, however deep it is.
#pragma once

#include <functional>

namespace hocket {

/// Thrown by stop_if_asked(), and caught by who made the StopWhen. Not an Error: nothing is wrong.
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

/// Called between steps of work that may take seconds. Throws Stopped if this thread's innermost
/// StopWhen is asked to.
void stop_if_asked();

}  // namespace hocket

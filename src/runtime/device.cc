// SPDX-License-Identifier: Apache-2.0
#include "runtime/device.h"

#include <algorithm>

namespace hocket::runtime {

struct Progress::Sleeper {
  int64_t count;
  bool due = false;  // guarded by the mutex of the Progress
  std::condition_variable woken{};
};

Progress::Wait Progress::wait(int64_t count, std::chrono::milliseconds timeout) {
  // Spins briefly before sleeping, since most waits are short. A Sleeper lies on the stack of its
  // thread; the waker removes it from the list while holding the mutex.
  for (int spin = 0; spin < 256; ++spin) {
    if (this->count() >= count) return Wait::reached;
  }
  std::unique_lock lock(mutex_);
  Sleeper sleeper{count};
  sleepers_.push_back(&sleeper);
  find_soonest();
  sleeper.woken.wait_for(lock, timeout,
                         [&] { return sleeper.due || stopped_ || count_.load() >= count; });
  if (!sleeper.due) {
    std::erase(sleepers_, &sleeper);
    find_soonest();
  }
  if (this->count() >= count) return Wait::reached;
  return stopped_ ? Wait::stopped : Wait::timed_out;
}

/// Requires: mutex_ is held.
void Progress::find_soonest() {
  int64_t soonest = INT64_MAX;
  for (const Sleeper* sleeper : sleepers_) {
    soonest = std::min(soonest, sleeper->count);
  }
  soonest_.store(soonest);
}

void Progress::wake(int64_t now) {
  std::lock_guard lock(mutex_);
  std::erase_if(sleepers_, [&](Sleeper* sleeper) {
    sleeper->due = sleeper->count <= now;
    if (sleeper->due) {
      sleeper->woken.notify_one();
    }
    return sleeper->due;
  });
  find_soonest();
}

void Progress::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (Sleeper* sleeper : sleepers_) {
    sleeper->woken.notify_one();
  }
}

void Progress::reset() {
  count_ = 0;
  stopped_ = false;
}

}  // namespace hocket::runtime

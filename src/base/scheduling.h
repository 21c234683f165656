// SPDX-License-Identifier: Apache-2.0
// Scheduling of threads that wait for data. Shared with libhocket_torch.
#pragma once

#include <pthread.h>
#include <sched.h>

namespace hocket {

/// Sets this thread's scheduling policy. Returns false where the system does not allow it.
inline bool set_scheduling(int policy) {
  sched_param lowest = {};
  lowest.sched_priority = ::sched_get_priority_min(policy);
  return ::pthread_setschedparam(::pthread_self(), policy, &lowest) == 0;
}

/// Schedules this thread, and those that it starts later, as soon as they are woken (SCHED_RR). For
/// threads that move data between ranks on a machine where all cores compute. By default Linux runs
/// a woken thread at its next tick, every 4 ms at 250 Hz, while a message takes less than one.
/// Without permission (root, CAP_SYS_NICE or `ulimit -r`) nothing changes.
inline void run_when_woken() { static_cast<void>(set_scheduling(SCHED_RR)); }

/// The same for its lifetime, for holders of locks on which such threads spin: otherwise a spinning
/// thread could keep the holder from its core.
class RunsWhenWoken {
 public:
  RunsWhenWoken() {
    int policy = SCHED_OTHER;
    sched_param had = {};
    const bool known = ::pthread_getschedparam(::pthread_self(), &policy, &had) == 0;
    changed_ = known && policy == SCHED_OTHER && set_scheduling(SCHED_RR);
  }
  ~RunsWhenWoken() {
    if (changed_) {
      set_scheduling(SCHED_OTHER);
    }
  }
  RunsWhenWoken(const RunsWhenWoken&) = delete;
  RunsWhenWoken& operator=(const RunsWhenWoken&) = delete;

 private:
  bool changed_ = false;
};

}  // namespace hocket

// SPDX-License-Identifier: Apache-2.0
// How soon a thread runs once there is something for it to do. Here and in libhocket_torch alike.
#pragma once

#include <pthread.h>
#include <sched.h>

namespace hocket {

/// False where the system does not allow it.
inline bool set_scheduling(int policy) {
  sched_param lowest = {};
  lowest.sched_priority = ::sched_get_priority_min(policy);
  return ::pthread_setschedparam(::pthread_self(), policy, &lowest) == 0;
}

/// For threads that move data between ranks, which sleep most of the time, on a machine whose cores
/// all compute: this thread, and those that it starts from now on, run as soon as they are woken
/// (SCHED_RR). Without it Linux lets them in when it next looks what should run: every 4 ms where
/// it ticks 250 times a second, and a message takes less than one. Where the system does not allow
/// it (it takes root, CAP_SYS_NICE or `ulimit -r`), nothing changes.
inline void run_when_woken() { static_cast<void>(set_scheduling(SCHED_RR)); }

/// The same while it lives, for what takes locks that such threads try again and again: whoever has
/// one of these must not be the one that they keep from its core.
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

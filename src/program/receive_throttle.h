// SPDX-License-Identifier: Apache-2.0
// Delays receives, so that a prefetched tensor occupies memory only from one compute task before
// its use.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>

#include "base/id.h"
#include "program/program.h"

namespace hocket::program {

/// Walks the tasks of a class in order, and adds dependencies to incoming transfers: the last
/// compute task before it in the list; for a receive also the last send of each lane before that
/// task, which frees the sent memory. So at most two hops of a tensor that travels around a ring
/// are in memory.
class ReceiveThrottle {
 public:
  ReceiveThrottle() {
    sent_.fill(kNone);
    sent_before_.fill(kNone);
  }

  /// Records the next task of the list.
  void observe(TaskId id, const Task& task) {
    if (task.lane == Lane::compute) {
      compute_ = id;
      sent_before_ = sent_;
    } else if (task.tag != kNone && task.out.empty()) {  // a send
      sent_[place_of(task.lane)] = id;
    }
  }
  /// Adds the dependencies of an incoming transfer, the next task of the list.
  void delay(Task* task) const {
    if (compute_ == kNone) return;
    task->deps.push_back(compute_);
    if (task->tag == kNone) return;
    std::copy_if(sent_before_.begin(), sent_before_.end(), std::back_inserter(task->deps),
                 [](TaskId send) { return send != kNone; });
  }

 private:
  TaskId compute_ = kNone;
  std::array<TaskId, kNumLanes> sent_, sent_before_;  ///< the last one of each lane
};

}  // namespace hocket::program

// SPDX-License-Identifier: Apache-2.0
// When what a message brings takes memory: not from the beginning of the step, but as late as
// lets it come beside the compute before its use.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>

#include "base/id.h"
#include "program/program.h"

namespace hocket::program {

/// Follows the tasks of a class in their order, and says what one that brings something waits for:
/// the compute task before it; and a receive also for the sends before that one, whose memory may
/// then be had again. So of what travels around a ring no more than two hops are there at a time.
class Room {
 public:
  Room() {
    sent_.fill(kNone);
    sent_before_.fill(kNone);
  }

  void pass(TaskId id, const Task& task) {
    if (task.lane == Lane::compute) {
      compute_ = id;
      sent_before_ = sent_;
    } else if (task.tag != kNone && task.out.empty()) {
      sent_[place_of(task.lane)] = id;
    }
  }
  void wait(Task* task) const {
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

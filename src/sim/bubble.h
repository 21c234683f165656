// SPDX-License-Identifier: Apache-2.0
// Which part of a rank's idle time is a bubble of the pipeline: the compute lane stands still
// because a rank of another stage has not come so far. Like a critical path, it is found from what
// ends the waiting: a task of the compute lane starts when the last of what it waited for has
// ended; that task had arrived at some time, and was held from then on by the rank that came last;
// it had arrived when what it waited for itself had ended, and so on, back to the last task of the
// compute lane.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/tables.h"

namespace hocket::sim {

/// Follows a replay. `idle_ns` is always that of the rank since the step began, bubbles included.
class Bubbles {
 public:
  explicit Bubbles(const Tables& tables);

  /// A task of a lane that does not compute starts.
  void start(int32_t rank, TaskId task, int64_t now, int64_t idle_ns);

  /// The pipeline stages of whom a task waited for last.
  struct Late {
    int32_t place = program::kNone;
    bool several = false;
  };
  /// Those of the members of a collective, in this lane, that have started it now.
  Late late(std::span<const int32_t> members, uint8_t lane, int64_t now) const;
  /// What the task in this lane has waited for since it started comes now.
  void collective_begins(int32_t rank, uint8_t lane, const Late& late, int64_t idle_ns);
  void message_begins(int32_t rank, TaskId receive, int32_t sender, TaskId send, int64_t idle_ns);

  /// A task of any lane ends.
  void end(int32_t rank, TaskId task, bool computes, int64_t now);

  /// A task starts that computes: how much of the idle time since the one before was a bubble.
  int64_t before_compute(int32_t rank, TaskId task, int64_t now, int64_t idle_ns);
  /// The same at the end of the step, when all ranks have ended: who has waits for those that end
  /// last.
  std::vector<int64_t> after_all(int64_t now) const;

 private:
  /// Of the task that runs in a lane.
  struct Running {
    int64_t since_ns = 0, since_idle_ns = 0;
    int64_t settled_ns = 0;  ///< as it was then
    int64_t bubble_ns = 0;   ///< of the idle time since `settled_ns`, up to where it began to move
  };
  struct Ended {
    TaskId task = 0;
    int64_t bubble_ns = 0;
  };
  struct Rank {
    int64_t settled_ns = 0;  ///< idle time before the last task that computed
    std::array<Running, program::kNumLanes> running;
    int64_t ended_ns = 0;      ///< when the last task ended
    std::vector<Ended> ended;  ///< tasks that ended then, behind a bubble
  };
  int64_t bubble_behind(int32_t rank, TaskId task, int64_t now) const;
  void hold(Rank& rank, uint8_t lane, int64_t idle_ns);

  const Tables& t_;
  std::vector<int32_t> place_;  ///< per rank: which stages it runs, as a number
  bool one_place_ = true;       ///< no pipeline, no bubble
  std::vector<Rank> ranks_;
};

}  // namespace hocket::sim

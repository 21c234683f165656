// SPDX-License-Identifier: Apache-2.0
// Attribution of a rank's idle time to pipeline bubbles: the compute lane is idle because a rank of
// another stage is late. As on a critical path, the cause is found from the event that ends a wait.
// A compute task starts when the last of its dependencies ends. That dependency was ready at some
// earlier time, and from then on it was delayed by the rank that arrived last. Its readiness is
// traced in the same way, back to the previous task of the compute lane.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/tables.h"

namespace hocket::sim {

/// A set of pipeline stages that a rank runs.
using StageSet = Id<struct StageSetTag>;

/// Observer of a replay. `idle_ns` is always the rank's idle time since the step began, bubbles
/// included.
class Bubbles {
 public:
  explicit Bubbles(const Tables& tables);

  /// Records that a task starts in a lane that does not compute.
  void start(RankIndex rank, TaskId task, int64_t now, int64_t idle_ns);

  /// Pipeline stages of the ranks that arrived last at a collective.
  struct Late {
    StageSet stage_set = program::kNone;  ///< number of their set of stages
    bool mixed = false;                   ///< they run different sets of stages
  };
  /// Returns the stages of the members with a task in this lane that starts at `now`.
  Late late(std::span<const RankIndex> members, program::Lane lane, int64_t now) const;
  /// Records that the transfer of the task in this lane begins now: the wait since its start is
  /// over.
  void collective_begins(RankIndex rank, program::Lane lane, const Late& late, int64_t idle_ns);
  void message_begins(RankIndex rank, TaskId receive, RankIndex sender, TaskId send,
                      int64_t idle_ns);

  /// Records that a task of any lane ends.
  void end(RankIndex rank, TaskId task, bool computes, int64_t now);

  /// Returns the part of the idle time since the previous compute task that was a bubble. Called
  /// when a compute task starts.
  int64_t before_compute(RankIndex rank, TaskId task, int64_t now, int64_t idle_ns);
  /// Returns per rank the bubble at the end of the step, when all ranks have ended: ranks that end
  /// early wait for the last ones.
  std::vector<int64_t> after_all(int64_t now) const;

 private:
  /// State of the task that runs in a lane.
  struct Running {
    int64_t since_ns = 0, since_idle_ns = 0;
    int64_t settled_ns = 0;  ///< Rank::settled_ns at the start of the task
    int64_t bubble_ns = 0;   ///< bubble in the idle time since `settled_ns`, up to the transfer
  };
  struct Ended {
    TaskId task = 0;
    int64_t bubble_ns = 0;
  };
  struct Rank {
    int64_t settled_ns = 0;  ///< idle time before the last compute task
    std::array<Running, program::kNumLanes> running;
    int64_t ended_ns = 0;      ///< when the last task ended
    std::vector<Ended> ended;  ///< tasks that ended at `ended_ns`, behind a bubble
  };
  int64_t bubble_behind(RankIndex rank, TaskId task, int64_t now) const;
  void hold(Rank& rank, program::Lane lane, int64_t idle_ns);

  const Tables& t_;
  std::vector<StageSet> stage_set_of_;  ///< per rank: number of its set of pipeline stages
  bool one_stage_set_ = true;           ///< no pipeline, hence no bubble
  std::vector<Rank> ranks_;
};

}  // namespace hocket::sim

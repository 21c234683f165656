// SPDX-License-Identifier: Apache-2.0
// Discrete-event replay of one step of a program in integer nanoseconds. A task starts when its
// lane's previous task and its dependencies are done; a collective transfers once every member has
// arrived; a send is eager and occupies its lane for the transfer; the matching receive ends when
// the transfer has arrived. Events are ordered by (time, rank, task): the result is the same to the
// byte on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::sim {

using program::ClassId;
using program::GroupId;
using program::Program;
using program::TaskId;

/// Where durations come from. The engine asks once per (class, task) or (class, task, shape) and
/// keeps the answer.
class Durations {
 public:
  virtual ~Durations() = default;
  /// Nanoseconds of a task that involves no other rank, alone on its resources.
  virtual int64_t work_ns(ClassId cls, TaskId task) = 0;
  /// A small dense id (0, 1, ...) of what matters about these ranks to a transfer's duration: their
  /// number and how they lie on nodes. For a send: {sender, receiver}.
  virtual int32_t shape_of(std::span<const int32_t> ranks) = 0;
  /// Nanoseconds from the moment when all members have arrived (collective) or from the start
  /// (send).
  virtual int64_t transfer_ns(ClassId cls, TaskId task, int32_t shape) = 0;
};

/// Where the time of one rank went. Exposed communication is time in which a transfer is under way
/// and the compute lane is not busy; idle is the rest (bubbles, waiting for others). The three add
/// up to the step.
struct RankTime {
  int64_t compute_ns = 0;
  int64_t exposed_ns = 0;
  int64_t idle_ns = 0;
  std::array<int64_t, program::kNumLanes> busy_ns{};  ///< per lane; transfers without the waiting
};

/// One stretch of the critical path, last first: [begin, end) was spent in this task.
struct PathStep {
  int32_t index = 0;  ///< of the replayed rank, into Replay::ranks
  TaskId task = 0;
  int64_t begin_ns = 0, end_ns = 0;
};

struct ReplayOptions {
  bool all_ranks = false;  ///< replay every rank even where one per class gives the same answer
  bool record = true;      ///< keep start and end of every task (traces, critical path)
  int32_t devices_per_node = 1;
  /// Ranks are threads of `cores_per_node` cores: the compute tasks that run at the same time on a
  /// node ask for `threads_per_rank` cores each and share what there is in equal parts. 0: every
  /// rank has a device of its own.
  int32_t cores_per_node = 0;
  int32_t threads_per_rank = 1;
};

struct Replay {
  int64_t end_ns = 0;
  int64_t num_tasks = 0;        ///< replayed
  std::vector<int32_t> ranks;   ///< replayed ranks
  std::vector<int32_t> stands;  ///< for how many ranks each one stands
  std::vector<RankTime> time;   ///< per replayed rank
  std::vector<int64_t> base;    ///< first entry of a replayed rank in the vectors below
  std::vector<int64_t> start_ns, end_of_ns;  ///< per (rank, task), if recorded
  /// When the transfer of a communication began (all had arrived, the sender had started); the
  /// start for other tasks.
  std::vector<int64_t> transfer_ns;
  std::vector<PathStep> path;  ///< critical path, from the end of the step to its beginning
  bool one_per_class = false;
};

/// Replays one step. Throws Error (exit code 1) on a deadlock, naming the stuck head of every lane,
/// and on collectives whose members disagree.
Replay replay(const Program& program, Durations& durations, const ReplayOptions& options);

}  // namespace hocket::sim

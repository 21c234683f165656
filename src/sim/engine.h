// SPDX-License-Identifier: Apache-2.0
// Discrete-event replay of one step of a program in integer nanoseconds. A task starts when its
// lane's previous task and its dependencies are done and the host has launched it; a collective
// transfers once every member has arrived; a send is eager and occupies its lane for the transfer;
// the matching receive ends when the transfer has arrived. Transfers share links, ranks share
// cores, and what a device does at the same time may slow each other (sharing.h). Events are
// ordered by (time, rank, task): the result is the same to the byte on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "sim/durations.h"

namespace hocket::sim {

/// Where the time of one rank went. Exposed communication is time in which a transfer is under way
/// and the compute lane is not busy; in a bubble neither is, because what the compute lane waits
/// for waits for a rank of another pipeline stage (bubble.h); idle is the rest (waiting for ranks
/// of its own stage, for launches). The four add up to the step.
struct RankTime {
  int64_t compute_ns = 0;
  int64_t exposed_ns = 0;
  int64_t bubble_ns = 0;
  int64_t idle_ns = 0;
  std::array<int64_t, program::kNumLanes> busy_ns{};  ///< per lane; transfers without the waiting
};

/// One stretch of the critical path, last first: [begin, end) was spent in this task.
struct PathStep {
  int32_t index = 0;  ///< of the replayed rank, into Replay::ranks
  TaskId task = 0;
  int64_t begin_ns = 0, end_ns = 0;
  bool launching = false;  ///< the host was launching tasks up to this one
};

struct ReplayOptions {
  bool all_ranks = false;   ///< replay every rank even where some stand for others
  bool record = true;       ///< keep start and end of every task (traces, critical path)
  bool keep_order = false;  ///< with record: keep the order in which tasks ended
  int32_t devices_per_node = 1;
  /// Ranks are threads of `cores_per_node` cores: the compute tasks that run at the same time on a
  /// node ask for `threads_per_rank` cores each and share what there is in equal parts. 0: every
  /// rank has a device of its own.
  int32_t cores_per_node = 0;
  int32_t threads_per_rank = 1;
  /// Transfers share the links of Durations::network, if there is one.
  bool share_links = true;
  /// A compute task takes this many times as long while its rank transfers, and a transfer while
  /// one of its ranks computes (all members of a collective, the sender of a message). From 1.
  double compute_beside_transfer = 1;
  double transfer_beside_compute = 1;
  /// The host of a rank launches its tasks in issue order, one every so many nanoseconds (and what
  /// Durations::more_launches_ns adds); what is in the lane `host` it runs itself, and a collective
  /// that tells sizes, or what it reads (Durations::host_reads), it awaits, before it launches what
  /// comes after. 0: it is never late.
  int64_t launch_ns = 0;
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
  std::vector<int32_t> order;  ///< if kept: per (rank, task), how many ended before it
  std::vector<PathStep> path;  ///< critical path, from the end of the step to its beginning
  /// One rank was replayed of all that do the same with the same kinds of others.
  bool one_per_kind = false;
  /// Some link may have to carry more than it can.
  bool shares_links = false;
  /// One rank per kind would do, if not for links that ranks of a kind share with others.
  bool uneven_links = false;
};

/// Replays one step. Throws Error (exit code 1) on a deadlock, naming the stuck head of every lane,
/// and on collectives whose members disagree.
Replay replay(const Program& program, Durations& durations, const ReplayOptions& options);

}  // namespace hocket::sim

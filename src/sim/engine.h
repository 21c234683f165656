// SPDX-License-Identifier: Apache-2.0
// Discrete-event replay of one step of a program in integer nanoseconds. A task starts when its
// lane's previous task and its dependencies have ended and the host has launched it. A collective
// transfers once every member has arrived. A send is eager and occupies its lane for the transfer;
// the matching receive ends when the transfer has arrived. Transfers share links, ranks share
// cores, and computation and communication of one device may slow each other (sharing.h). Events
// are ordered by (time, rank, task): the result is identical to the byte on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "sim/durations.h"
#include "sim/ids.h"

namespace hocket::sim {

/// Breakdown of one rank's time into four parts that add up to the step. Exposed communication: a
/// transfer is in flight and the compute lane is not busy. Bubble: neither is busy, because the
/// compute lane waits for a rank of another pipeline stage (bubble.h). Idle: the rest, waiting for
/// ranks of the same stage or for launches.
struct RankTime {
  int64_t compute_ns = 0;
  int64_t exposed_ns = 0;
  int64_t bubble_ns = 0;
  int64_t idle_ns = 0;
  std::array<int64_t, program::kNumLanes> busy_ns{};  ///< per lane; transfers without waiting time
};

/// Segment of the critical path, listed from last to first: [begin, end) was spent in this task.
struct PathStep {
  RankIndex index;
  TaskId task = 0;
  int64_t begin_ns = 0, end_ns = 0;
  bool launching = false;  ///< the host was launching tasks up to this one
};

struct ReplayOptions {
  bool all_ranks = false;   ///< replay every rank even where one can stand for others
  bool record = true;       ///< keep start and end of every task (traces, critical path)
  bool keep_order = false;  ///< with record: keep the order in which tasks ended
  int32_t devices_per_node = 1;
  /// Number of cores of a node with the ranks as its threads. The compute tasks that run on a node
  /// at the same time each request `threads_per_rank` cores and share the cores equally. 0: every
  /// rank has its own device.
  int32_t cores_per_node = 0;
  int32_t threads_per_rank = 1;
  /// Transfers share the links of Durations::network, if there is one.
  bool share_links = true;
  /// Slowdown factor (at least 1) of a compute task while its rank transfers, and of a transfer
  /// while one of its ranks computes: any member of a collective, or the sender of a message.
  double compute_beside_transfer = 1;
  double transfer_beside_compute = 1;
  /// Nanoseconds between launches: a rank's host launches its tasks in issue order, one at a time
  /// (plus Durations::more_launches_ns). It runs tasks of the lane `host` itself. Before it
  /// launches more, it awaits collectives that produce sizes and tasks with results that it reads
  /// (Durations::host_reads). 0: launches take no time.
  int64_t launch_ns = 0;
};

struct Replay {
  int64_t end_ns = 0;
  int64_t num_tasks = 0;              ///< replayed
  std::vector<int32_t> ranks;         ///< replayed ranks
  std::vector<int32_t> multiplicity;  ///< number of ranks that each one stands for
  std::vector<RankTime> time;         ///< per replayed rank
  std::vector<int64_t> base;          ///< first entry of a replayed rank in the vectors below
  std::vector<int64_t> start_ns, end_of_ns;  ///< per (rank, task), if recorded
  /// Start of a communication's transfer (all members have arrived, the sender has started). For
  /// other tasks, their start.
  std::vector<int64_t> transfer_ns;
  std::vector<int32_t> order;  ///< if kept: per (rank, task), number of tasks that ended before it
  std::vector<PathStep> path;  ///< critical path, from the end of the step to its beginning
  /// Set if ranks were grouped by identical behaviour and one per group was replayed.
  bool deduplicated = false;
  /// Set if the demand for some link may exceed its capacity.
  bool shares_links = false;
  /// Set if the ranks could be grouped but for links that ranks of a group share with different
  /// others.
  bool links_prevent_dedup = false;
};

/// Replays one step. Throws Error (exit code 1) on a deadlock, naming the blocked head of every
/// lane, and on collectives with members that disagree.
Replay replay(const Program& program, Durations& durations, const ReplayOptions& options);

}  // namespace hocket::sim

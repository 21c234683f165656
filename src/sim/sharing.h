// SPDX-License-Identifier: Apache-2.0
// Fluid model of shared resources: compute tasks share the cores of a node, transfers share links,
// and a device that computes and transfers at the same time slows both. All use one mechanism: an
// activity has remaining work, a speed from 0 to 1, and an event that moves when its speed changes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/contention.h"
#include "sim/durations.h"
#include "sim/event_queue.h"

namespace hocket::sim {

/// Slowdown of activities that overlap on a device, and the number of cores that they share.
struct SharingRules {
  int32_t devices_per_node = 1;
  int32_t cores_per_node = 0;  ///< 0: cores are not shared
  int32_t threads_per_rank = 1;
  double compute_beside_transfer = 1;
  double transfer_beside_compute = 1;
};

class Sharing {
 public:
  /// Creates an empty model. `ranks`: the replayed ranks; other functions take an index in it.
  Sharing(const std::vector<int32_t>& ranks, int32_t num_links, const SharingRules& rules);

  bool empty() const { return events_.empty(); }
  /// Returns the next event: the end of a task, or the end of a latency.
  const Event& next() const { return events_.event(events_.top()); }
  /// Takes the next event. Returns true if its task has ended, false if only its latency is over.
  bool pop();

  /// Begins a task that takes `ns` alone, in the compute lane or in a lane of the host. A task of
  /// the host uses cores only.
  void begin_work(int32_t index, TaskId task, int64_t ns, bool of_host, int64_t now);
  /// Begins a transfer, named by one of its ranks. `ranks`: those whose computation slows it down.
  /// The targets of the spans and of `demand` must stay valid.
  void begin_transfer(int32_t index, TaskId task, const Demand& demand,
                      std::span<const LinkUse> uses, std::span<const int32_t> ranks, int64_t now);
  /// Records that a rank begins (+1) or ends (-1) to take part in a transfer.
  void change_transfers(int32_t index, int change, int64_t now);

 private:
  struct Running {
    int32_t index = 0;
    TaskId task = 0;
    double remaining = 0;  ///< ns at full speed, as of `since`
    double speed = 0;
    int64_t since = 0;
    bool of_host = false;
    // Transfers only.
    const Demand* demand = nullptr;  ///< null: work
    std::span<const LinkUse> uses;
    std::span<const int32_t> ranks;
    int32_t computing = 0;  ///< number of `ranks` that compute
    bool latency = false;   ///< in its latency, no bytes yet
    uint32_t visited = 0;
    bool fixed = false;      ///< its speed is fixed in the present filling
    double fixed_speed = 0;  ///< that speed
  };
  struct OnLink {
    int32_t id;
    double load;  ///< share of the link at full speed
  };
  struct Link {
    int64_t load =
        0;  ///< of all on it, in load_units of 1 / kLoadUnits: sums of integers do not drift
    std::vector<OnLink> on;
    uint32_t visited = 0;
    // State of the present filling.
    double remaining = 0, slope = 0, slope_summed = 0;
    int32_t open = 0;
  };
  static constexpr int64_t kLoadUnits = int64_t{1} << 40;

  int32_t add(const Running& running);
  void free(int32_t id);
  int32_t node_of(int32_t index) const;
  /// Sets the speed, and moves the event.
  void set_speed(int32_t id, double speed, int64_t now);
  double work_speed(const Running& work) const;
  void change_cores(int32_t node, int64_t now);
  /// Records that a rank begins or ends to compute, which changes the speed of its transfers.
  void change_computing(int32_t index, int change, int64_t now);
  /// Returns the share of a link that a transfer at full speed takes, including those it stands
  /// for.
  static double load_of(const Running& transfer, const LinkUse& use);
  static int64_t load_units(double load);
  /// Returns the maximum speed of a transfer on free links.
  double max_speed(const Running& transfer) const;
  void begin_data(int32_t id, int64_t now);
  void leave_links(int32_t id, int64_t now);
  /// Recomputes the speeds of all transfers that the links in `changed_links_` affect.
  void share_links(int64_t now);
  void fill(int64_t now);
  void fix_speed(Running& transfer, double speed);

  const std::vector<int32_t>& ranks_;
  SharingRules rules_;
  std::vector<Running> running_;
  std::vector<int32_t> free_;
  IndexedEvents events_;
  std::vector<std::vector<int32_t>> on_node_;  ///< tasks, per node
  std::vector<int32_t> compute_task_of_,
      transferring_;                                ///< per rank: compute task, number of transfers
  std::vector<std::vector<int32_t>> transfers_of_;  ///< per rank, where computation slows them
  std::vector<Link> links_;
  uint32_t visit_ = 0;
  std::vector<int32_t> changed_links_, affected_;  ///< links and transfers of the present filling
};

}  // namespace hocket::sim

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
#include "sim/ids.h"

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
  void begin_work(RankIndex index, TaskId task, int64_t ns, bool of_host, int64_t now);
  /// Begins a transfer, named by one of its ranks. `ranks`: those with computation that slows it
  /// down. The targets of the spans and of `demand` must stay valid.
  void begin_transfer(RankIndex index, TaskId task, const Demand& demand,
                      std::span<const LinkUse> uses, std::span<const RankIndex> ranks, int64_t now);
  /// Records that a rank begins (+1) or ends (-1) to take part in a transfer.
  void change_transfers(RankIndex index, int change, int64_t now);

 private:
  /// A running task or transfer.
  struct Activity {
    RankIndex index;
    TaskId task = 0;
    double remaining = 0;  ///< ns at full speed, as of `since`
    double speed = 0;
    int64_t since = 0;
    bool of_host = false;
    // Transfers only.
    const Demand* demand = nullptr;  ///< null: work
    std::span<const LinkUse> uses;
    std::span<const RankIndex> ranks;
    int32_t computing = 0;  ///< number of `ranks` that compute
    bool latency = false;   ///< in its latency, no bytes yet
    uint32_t visited = 0;
    bool fixed = false;      ///< its speed is fixed in the present filling
    double fixed_speed = 0;  ///< that speed
  };
  using ActivityId = Id<Activity>;
  struct OnLink {
    ActivityId id;
    double load;  ///< share of the link at full speed
  };
  struct Link {
    /// Sums over all activities on it, in units of 1 / kLoadUnits: sums of integers do not drift.
    int64_t load = 0;
    std::vector<OnLink> on;
    uint32_t visited = 0;
    // State of the present filling.
    double remaining = 0, slope = 0, slope_summed = 0;
    int32_t open = 0;
  };
  static constexpr int64_t kLoadUnits = int64_t{1} << 40;

  ActivityId add(const Activity& activity);
  void free(ActivityId id);
  int32_t node_of(RankIndex index) const;
  /// Sets the speed, and moves the event.
  void set_speed(ActivityId id, double speed, int64_t now);
  double work_speed(const Activity& work) const;
  void change_cores(int32_t node, int64_t now);
  /// Records that a rank begins or ends to compute, which changes the speed of its transfers.
  void change_computing(RankIndex index, int change, int64_t now);
  /// Returns the share of a link that a transfer at full speed takes, including those it stands
  /// for.
  static double load_of(const Activity& transfer, const LinkUse& use);
  static int64_t load_units(double load);
  /// Returns the maximum speed of a transfer on free links.
  double max_speed(const Activity& transfer) const;
  void begin_data(ActivityId id, int64_t now);
  void leave_links(ActivityId id, int64_t now);
  /// Recomputes the speeds of all transfers that the links in `changed_links_` affect.
  void share_links(int64_t now);
  void fill(int64_t now);
  void fix_speed(Activity& transfer, double speed);

  const std::vector<int32_t>& ranks_;
  SharingRules rules_;
  std::vector<Activity> activities_;
  std::vector<ActivityId> free_;
  IndexedEvents<ActivityId> events_;
  std::vector<std::vector<ActivityId>> on_node_;       ///< tasks, per node
  std::vector<ActivityId> compute_task_of_;            ///< per rank, kNone if it does not compute
  std::vector<int32_t> transferring_;                  ///< per rank: number of its transfers
  std::vector<std::vector<ActivityId>> transfers_of_;  ///< per rank, where computation slows them
  std::vector<Link> links_;
  uint32_t visit_ = 0;
  std::vector<SharedLinkId> changed_links_;  ///< of the present filling
  std::vector<ActivityId> affected_;         ///< transfers of the present filling
};

}  // namespace hocket::sim

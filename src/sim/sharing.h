// SPDX-License-Identifier: Apache-2.0
// Whatever runs at a speed that others decide: compute tasks that share the cores of a node,
// transfers that share links, and both where a device computes and transfers at the same time. One
// mechanism: each of them has what is left of it, a speed from 0 to 1, and an event that moves when
// its speed does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/contention.h"
#include "sim/durations.h"
#include "sim/event_queue.h"

namespace hocket::sim {

/// How much slower things run beside each other on a device, and how many cores they share.
struct SharingRules {
  int32_t devices_per_node = 1;
  int32_t cores_per_node = 0;  ///< 0: none are shared
  int32_t threads_per_rank = 1;
  double compute_beside_transfer = 1;
  double transfer_beside_compute = 1;
};

class Sharing {
 public:
  /// `ranks`: the replayed ones; others are named by their index in it.
  Sharing(const std::vector<int32_t>& ranks, int32_t num_links, const SharingRules& rules);

  bool empty() const { return events_.empty(); }
  /// The next event: the end of a task, or one of which take() tells nothing.
  const Event& next() const { return events_.event(events_.top()); }
  /// Takes the next event. True: its task has ended; false: a latency is over.
  bool take();

  /// A task that takes `ns` alone, of the compute lane or of a lane of the host, which takes cores
  /// and nothing else.
  void begin_work(int32_t index, TaskId task, int64_t ns, bool of_host, int64_t now);
  /// A transfer, named by one of its ranks. `ranks`: those whose computing slows it. What the spans
  /// and `demand` point to must stay.
  void begin_transfer(int32_t index, TaskId task, const Demand& demand,
                      std::span<const LinkUse> uses, std::span<const int32_t> ranks, int64_t now);
  /// A rank begins (+1) or ends (-1) to take part in a transfer.
  void moves(int32_t index, int change, int64_t now);

 private:
  struct Running {
    int32_t index = 0;
    TaskId task = 0;
    double left = 0;  ///< ns at full speed, at `since`
    double speed = 0;
    int64_t since = 0;
    bool of_host = false;
    // Of a transfer.
    const Demand* demand = nullptr;  ///< null: work
    std::span<const LinkUse> uses;
    std::span<const int32_t> ranks;
    int32_t computing = 0;  ///< how many of `ranks` compute
    bool latency = false;   ///< no bytes yet
    uint32_t seen = 0;
    bool settled = false;  ///< in the present filling, at
    double wanted = 0;     ///< this speed
  };
  struct OnLink {
    int32_t id;
    double load;  ///< share of the link at full speed
  };
  struct Link {
    int64_t load = 0;  ///< of all on it, in kUnits: sums of integers do not drift
    std::vector<OnLink> on;
    uint32_t seen = 0;
    // In the present filling.
    double left = 0, slope = 0, slope_summed = 0;
    int32_t open = 0;
  };
  static constexpr int64_t kUnits = int64_t{1} << 40;

  int32_t add(const Running& running);
  void free(int32_t id);
  int32_t node_of(int32_t index) const;
  /// Sets the speed, and moves the event.
  void run_at(int32_t id, double speed, int64_t now);
  double work_speed(const Running& work) const;
  void change_cores(int32_t node, int64_t now);
  /// A rank begins or ends to compute: its transfers change their speed.
  void computes(int32_t index, int change, int64_t now);
  /// Share of a link that a transfer at full speed takes, with those that it stands for.
  static double load_of(const Running& transfer, const LinkUse& use);
  static int64_t units(double load);
  /// As fast as a transfer may be with free links.
  double most(const Running& transfer) const;
  void begin_data(int32_t id, int64_t now);
  void leave_links(int32_t id, int64_t now);
  /// Shares out links anew: all that transfers on `changed_` have to do with.
  void share_links(int64_t now);
  void fill(int64_t now);
  void settle(Running& transfer, double speed);

  const std::vector<int32_t>& ranks_;
  SharingRules rules_;
  std::vector<Running> running_;
  std::vector<int32_t> free_;
  NamedEvents events_;
  std::vector<std::vector<int32_t>> on_node_;       ///< work, per node
  std::vector<int32_t> work_of_, moving_;           ///< per rank, of the compute lane
  std::vector<std::vector<int32_t>> transfers_of_;  ///< per rank, where computing slows them
  std::vector<Link> links_;
  uint32_t sight_ = 0;
  std::vector<int32_t> changed_, met_;  ///< links and transfers of the present filling
};

}  // namespace hocket::sim

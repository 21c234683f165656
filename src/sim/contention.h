// SPDX-License-Identifier: Apache-2.0
// Links that transfers may have to share, and the symmetry between transfers. Computed once per
// replay for all ranks. Links that can never be full are dropped, so that the event loop ignores
// them.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "cost/network.h"
#include "program/program.h"
#include "sim/ids.h"

namespace hocket::sim {

/// Use of a link by a transfer in progress.
struct LinkUse {
  SharedLinkId link;
  int32_t block = 0;  ///< block of the network, which selects the transfer's share
  /// Number of concurrent identical transfers on this link, this one included. Above 1 only where a
  /// rank stands for others.
  int32_t count = 1;
};

class Contention {
 public:
  using Shares = std::array<double, cost::kLinkBlocks>;
  struct Flow;
  using FlowId = Id<Flow>;

  /// Upper bound on the link shares that a queue's transfers take.
  struct PeakShares {
    int32_t queue = 0;
    Shares share = {};
    /// For an uplink: its share over the share that the same transfer takes of its access link
    /// (PassedLink::access_link).
    Shares over_access = {};
  };

  /// Ranks with transfers over the same links, one transfer at a time per queue of a rank: the
  /// members of a group instance, or a sender and its receiver.
  struct Flow {
    std::vector<cost::PassedLink> links;
    std::vector<PeakShares> peaks;  ///< per queue
  };

  /// Exclusive upper bound on the numbers of a rank's queues.
  static constexpr int32_t kQueues = program::kNumLanes;

  /// Adds a flow and returns its number.
  FlowId add(Flow flow);
  /// Drops the links that cannot become full before others do, for any set of concurrent
  /// transfers. Requires: all flows have been added.
  void drop_never_full_links();
  /// Returns whether some link may become full.
  bool has_links() const { return num_links_ > 0; }
  /// Returns a number per flow, equal for flows if their links carry equally many transfers of
  /// every orbit. `orbits`: per flow, the number of its equivalence class, as far as known without
  /// links.
  std::vector<int32_t> views(const std::vector<int32_t>& orbits);
  /// Returns the links of a flow, numbered from 0. `merged`: equivalent links are one link, and a
  /// flow stands for its whole orbit. Requires for `merged`: the last views() gave all flows of
  /// each orbit one view.
  std::vector<LinkUse> uses(FlowId flow, bool merged) const;
  /// Exclusive upper bound on the link numbers that uses() returns.
  int32_t num_links() const { return num_links_; }

 private:
  using Sharers = std::vector<std::pair<int32_t, int32_t>>;  ///< (orbit, block), sorted
  using LinkClassId = Id<Sharers>;

  std::vector<Flow> flows_;
  int32_t num_links_ = 0;
  std::vector<int32_t> orbits_;
  /// Per link, the number of its equivalence class; per class, the (orbit, block) of all flows on
  /// one of its links.
  std::vector<LinkClassId> link_class_of_;
  std::vector<Sharers> sharers_;
};

}  // namespace hocket::sim

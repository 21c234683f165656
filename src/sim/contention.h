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

namespace hocket::sim {

/// Use of a link by a transfer in progress.
struct LinkUse {
  int32_t link = 0;
  int32_t block = 0;  ///< block of the network, which selects the transfer's share
  /// Number of transfers that do the same at the same time on this link, this one included. Above 1
  /// only where a rank stands for others.
  int32_t count = 1;
};

class Contention {
 public:
  using Shares = std::array<double, cost::kLinkBlocks>;

  /// Upper bound on the link shares that a queue's transfers take.
  struct Most {
    int32_t queue = 0;
    Shares share = {};
    /// For an uplink: its share over the share that the same transfer takes of the link beside it
    /// (Passed::beside).
    Shares over_beside = {};
  };

  /// Ranks whose transfers use the same links, one transfer at a time per queue of a rank: the
  /// members of a group instance, or a sender and its receiver.
  struct Place {
    std::vector<cost::Passed> links;
    std::vector<Most> most;  ///< per queue
  };

  /// Exclusive upper bound on the numbers of a rank's queues.
  static constexpr int32_t kQueues = program::kNumLanes;

  /// Adds a place and returns its number.
  int32_t add(Place place);
  /// Drops the links that cannot become full before others do, for any set of concurrent transfers.
  /// Requires: all places have been added.
  void settle();
  /// Returns whether some link may become full.
  bool any() const { return num_links_ > 0; }
  /// Returns a number per place, equal for places whose links carry equally many transfers of every
  /// orbit. `orbits`: per place, the number of its equivalence class, as far as known without
  /// links.
  std::vector<int32_t> views(const std::vector<int32_t>& orbits);
  /// Returns the links of a place, numbered from 0. `merged`: equivalent links are one link, and a
  /// place stands for its whole orbit. Requires for `merged`: the last views() gave all places of
  /// each orbit one view.
  std::vector<LinkUse> uses(int32_t place, bool merged) const;
  /// Exclusive upper bound on the link numbers that uses() returns.
  int32_t num_links() const { return num_links_; }

 private:
  using Pair = std::pair<int32_t, int32_t>;

  std::vector<Place> places_;
  int32_t num_links_ = 0;
  std::vector<int32_t> orbits_;
  /// Per link, the number of its equivalence class; per class, the (orbit, block) of all places on
  /// one of its links.
  std::vector<int32_t> alike_;
  std::vector<std::vector<Pair>> sharers_;
};

}  // namespace hocket::sim

// SPDX-License-Identifier: Apache-2.0
// Which links transfers may ever have to share, and who sees the same of that. Asked once per
// replay, of all ranks; links that can never be full are of no interest to the event loop.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "cost/network.h"
#include "program/program.h"

namespace hocket::sim {

/// A link that a transfer in progress takes a share of.
struct LinkUse {
  int32_t link = 0;
  int32_t block = 0;  ///< of the network: which of the transfer's shares
  /// Transfers that do the same at the same time on this link, this one included: above 1 only
  /// where a rank stands for others.
  int32_t count = 1;
};

class Contention {
 public:
  using Shares = std::array<double, cost::kLinkBlocks>;

  /// What the transfers of a queue take of links at most.
  struct Most {
    int32_t queue = 0;
    Shares share = {};
    /// Of an uplink, over what the same transfer takes of the link beside it (Passed::beside).
    Shares over_beside = {};
  };

  /// Who transfers over the same links, one transfer at a time in each queue of a rank: the ranks
  /// that meet in a group, or a sender and its receiver.
  struct Place {
    std::vector<cost::Passed> links;
    std::vector<Most> most;  ///< by queue
  };

  /// Queues of a rank have numbers below this.
  static constexpr int32_t kQueues = program::kNumLanes;

  /// Returns the place's number.
  int32_t add(Place place);
  /// Call when all places are known: forgets the links that are never full before others are,
  /// whichever transfers run at a time.
  void settle();
  /// Is there a link that may be full?
  bool any() const { return num_links_ > 0; }
  /// Per place, a number that it shares with those places whose links are shared by as many places
  /// of every orbit as its own. `orbits`: per place, the number of those that do the same, as far
  /// as is known without links.
  std::vector<int32_t> views(const std::vector<int32_t>& orbits);
  /// Links of a place, numbered from 0. `merged`: links that are shared in the same way are one,
  /// and a place stands for all of its orbit; only if all places of each orbit have one view, by
  /// the last views().
  std::vector<LinkUse> uses(int32_t place, bool merged) const;
  /// One above the largest number that uses() gives.
  int32_t num_links() const { return num_links_; }

 private:
  using Pair = std::pair<int32_t, int32_t>;

  std::vector<Place> places_;
  int32_t num_links_ = 0;
  std::vector<int32_t> orbits_;
  /// Per link, its number among those that are shared in the same way; and of these, the (orbit,
  /// block) of all places on one of them.
  std::vector<int32_t> alike_;
  std::vector<std::vector<Pair>> sharers_;
};

}  // namespace hocket::sim

// SPDX-License-Identifier: Apache-2.0
// Which links transfers may ever have to share, and whether all ranks of a class see the same of
// that. Asked once per replay, of all ranks; links that can never be full are of no interest to the
// event loop.
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

  /// Who transfers over the same links, one transfer at a time in each queue of a rank: the ranks
  /// that meet in a group, or a sender and its receiver.
  struct Place {
    int32_t orbit = 0;  ///< number of those that do the same, if all ranks of a class do
    std::vector<cost::Passed> links;
    /// By queue, the largest shares of its transfers.
    std::vector<std::pair<int32_t, Shares>> most;
  };

  /// Queues of a rank have numbers below this.
  static constexpr int32_t kQueues = 2 * program::kNumLanes;

  /// Returns the place's number.
  int32_t add(Place place);
  /// Call when all places are known: forgets the links whose transfers fit side by side, whichever
  /// of them run at a time.
  void settle();
  /// Is there a link that may be full?
  bool any() const { return num_links_ > 0; }
  /// Does every place of an orbit have such links, shared with as many places of every other orbit?
  bool symmetric();
  /// Links of a place, numbered from 0. `merged`: links that are shared in the same way are one,
  /// and a place stands for all of its orbit; only if symmetric.
  std::vector<LinkUse> uses(int32_t place, bool merged) const;
  /// One above the largest number that uses() gives.
  int32_t num_links() const { return num_links_; }

 private:
  using Pair = std::pair<int32_t, int32_t>;

  std::vector<Place> places_;
  int32_t num_links_ = 0;
  /// Per link, its number among those that are shared in the same way; and of these, the (orbit,
  /// block) of all places on one of them.
  std::vector<int32_t> alike_;
  std::vector<std::vector<Pair>> sharers_;
};

}  // namespace hocket::sim

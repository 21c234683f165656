// SPDX-License-Identifier: Apache-2.0
// Collectives by what the transport has of its own (plan.collectives: c10d): a sum is its sum, and
// whatever else members read of each other goes by its all-to-all.
#pragma once

#include <atomic>
#include <functional>

#include "collectives/comm_op.h"
#include "comm/communicator.h"
#include "comm/wire.h"

namespace hocket::comm {

/// Memory for the collectives of a lane, which come one after the other: kept from each to the next
/// ones, so that steps allocate none.
class ScratchSpace {
 public:
  /// Makes room for parts of `bytes` together, each of whole multiples of kScratchAlign; what was
  /// taken before is no longer used.
  void begin(int64_t bytes);
  /// The next part.
  Scratch take(int64_t bytes);
  /// What it has: the most that was asked for.
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Message> memory_;
  int64_t used_ = 0;
  std::atomic<int64_t> bytes_ = 0;
};

/// The part of `rank` in a collective that has a counterpart (by_transport). `wait` is called with
/// whatever was begun.
void run_by_transport(const Call& call, const Op& op, int32_t rank, Team& team, ScratchSpace& space,
                      const std::function<void(Incoming&)>& wait);

}  // namespace hocket::comm

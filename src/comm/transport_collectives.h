// SPDX-License-Identifier: Apache-2.0
// Collectives by the transport's own (plan.collectives: c10d): reductions and gathers by their
// counterparts, other ops by its all-to-all.
#pragma once

#include <atomic>
#include <functional>

#include "collectives/comm_op.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace hocket::comm {

/// Scratch memory for the collectives of a lane, which run one after another. It is kept between
/// collectives, so that steps allocate nothing.
class ScratchSpace {
 public:
  /// Reserves `bytes` for parts, each rounded up to kScratchAlign. Parts taken before become
  /// invalid.
  void begin(int64_t bytes);
  /// Returns the next part.
  Scratch take(int64_t bytes);
  /// Returns the size of the memory: the most that was reserved.
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Message> memory_;
  int64_t used_ = 0;
  std::atomic<int64_t> bytes_ = 0;
};

/// Executes the part of `rank` in a collective with a counterpart (by_transport). Calls `wait` for
/// every request that it begins.
void run_by_transport(const Call& call, const Op& op, int32_t rank, CollectiveGroup& group,
                      ScratchSpace& space, const std::function<void(Request&)>& wait);

}  // namespace hocket::comm

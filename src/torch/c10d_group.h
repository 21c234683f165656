// SPDX-License-Identifier: Apache-2.0
// Collectives of c10d among the members of one of its groups. Operands of NCCL's are copied to the
// rank's GPU and back.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "comm/transport.h"

namespace hocket::comm {

/// State of a collective. Shared with Gloo, which may end the collective after the waiting thread
/// has given up.
struct CollectiveState {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false, stopped = false;
  std::string failed;
};

/// Collectives that are being waited for. All of them can be stopped together; later ones are then
/// stopped at once.
class PendingCollectives {
 public:
  void add(CollectiveState* state);
  void remove(CollectiveState* state);
  void stop();

 private:
  std::mutex mutex_;
  std::set<CollectiveState*> all_;
  bool stopped_ = false;
};

/// Creates the process group's collectives, with tensors on `device`: Gloo on the CPU, NCCL on a
/// GPU. Requires: `all` outlives the group.
std::unique_ptr<CollectiveGroup> c10d_group(c10::intrusive_ptr<c10d::Backend> group,
                                            at::Device device, PendingCollectives& all);

}  // namespace hocket::comm

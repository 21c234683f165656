// SPDX-License-Identifier: Apache-2.0
// Collectives by what the transport has of its own (plan.collectives: c10d): a sum is its sum, and
// whatever else members read of each other goes by its all-to-all.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "comm/ops/comm_op.h"
#include "comm/wire.h"

namespace hocket::comm {

/// True if the transport has a counterpart of a collective on these types among so many members.
bool transport_has(const program::Kind& kind, const Op& op, size_t members);

/// The part of `rank` in one that it has. `wait` is called with whatever was begun.
void run_by_transport(const Call& call, const Op& op, int32_t rank, Team& team,
                      const std::function<void(Incoming&)>& wait);

}  // namespace hocket::comm

// SPDX-License-Identifier: Apache-2.0
// What collectives cost that go from one rank to all others or back: no program has them, but
// libraries do, and logs of these.
#pragma once

#include <string_view>
#include <vector>

#include "collectives/comm_op.h"

namespace hocket::cost {

/// The algorithm of one member that has a part for every other one, or gets one of each: a direct
/// exchange of which only its own links are busy.
inline constexpr const char* kRooted = "rooted";

/// broadcast, reduce, gather, scatter, as far as costs are asked for: `name`, `doc`, `algorithms`.
/// The payload is what the root has at the end, or had.
const std::vector<comm::Op>& rooted_ops();

/// One of the registry or of these that has a cost; null: there is none.
const comm::Op* find_costed(std::string_view name);

}  // namespace hocket::cost

// SPDX-License-Identifier: Apache-2.0
// Costs of rooted collectives (broadcast, reduce, gather, scatter). Programs have none, but
// libraries and their logs do.
#pragma once

#include <string_view>
#include <vector>

#include "collectives/comm_op.h"

namespace hocket::cost {

/// Algorithm in which the root exchanges a part with every other member: a direct exchange in which
/// only the root's links are busy.
inline constexpr const char* kRooted = "rooted";

/// Returns broadcast, reduce, gather and scatter with the fields that costs need: `name`, `doc`,
/// `algorithms`. The payload is the root's buffer, before the op or after it.
const std::vector<comm::Op>& rooted_ops();

/// Returns the op of the registry or of rooted_ops() with this name, if it has a cost; else null.
const comm::Op* find_costed(std::string_view name);

}  // namespace hocket::cost

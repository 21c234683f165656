// SPDX-License-Identifier: Apache-2.0
// Message memory of collectives that are executed by their records (plan.collectives: own).
#pragma once

#include <cstdint>
#include <span>

#include "collectives/comm_op.h"

namespace hocket::comm {

/// Divisible collectives run in parts of kPartBytes from each member to each other member, with at
/// most kPartsAhead parts of a phase in flight.
inline constexpr int64_t kPartBytes = 256 << 10;
inline constexpr int64_t kPartsAhead = 6;

/// Returns the number of parts of a collective with this payload (Op::payload) among `members`
/// ranks.
int64_t parts_among(const Op& op, int64_t payload, int64_t members);
/// Returns the maximum number of parts in flight, over all phases.
int64_t most_parts_on_way(const Op& op);

/// Returns the total bytes of the slices.
int64_t total(std::span<const Slice> slices);

/// Returns whether the slices read of a member can be used in place in the received message: one
/// slice per operand, aligned to its element type. Otherwise they are copied to memory of their
/// own.
bool is_read_packed(std::span<const Slice> slices, std::span<const TensorType> in,
                    std::span<const TensorType> out);

/// Returns an upper bound of a member's message memory in a collective: bytes sent and not yet
/// received, and bytes received and not yet consumed. Routed tensors count with the rows of even
/// routing; a transfer counts the sent and the received bytes, each once. Requires: types that
/// infer() accepts.
/// Parts of the next collective reuse the memory of parts that have ended, so they need none of
/// their own. Members are at most kPartsAhead parts apart, and a part sent ahead may wait until the
/// slowest member has received the one before: sent bytes count twice.
int64_t exchange_bytes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                       std::span<const TensorType> out, int64_t members);

}  // namespace hocket::comm

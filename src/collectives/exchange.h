// SPDX-License-Identifier: Apache-2.0
// What a collective of our own between processes has on its way (plan.collectives: own).
#pragma once

#include <cstdint>
#include <span>

#include "collectives/comm_op.h"

namespace hocket::comm {

/// Collectives that divide are done in parts: of so many bytes from each member to each other one,
/// and so many on their way at a time.
inline constexpr int64_t kPartBytes = 256 << 10;
inline constexpr int64_t kPartsAhead = 6;

/// Parts of a collective of so many bytes (Op::payload) among so many members.
int64_t parts_among(const Op& op, int64_t payload, int64_t members);
/// Parts that are on their way at a time, of all phases.
int64_t most_parts_on_way(const Op& op);

/// Bytes of the slices together.
int64_t total(std::span<const Slice> slices);

/// True if what is read of a member can be read where it came, one slice behind the other: one of
/// an operand, where numbers of its type may lie. Else it is given out to memory of its own.
bool is_read_packed(std::span<const Slice> slices, std::span<const TensorType> in,
                    std::span<const TensorType> out);

/// Most bytes that a member has of messages of a collective among so many: what it sent and others
/// have not taken, and what comes and is not used up. Of routed rows those that even routing moves;
/// of a transfer what the member has of it and what it takes, each once. The types must fit.
///
/// What begins of the next collective takes the places of parts that have ended, so it has no
/// memory of its own here. Members are no more than the parts ahead of each other, and what is sent
/// ahead again may wait until the slowest has taken what was sent before: twice as much is sent as
/// comes.
int64_t exchange_bytes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                       std::span<const TensorType> out, int64_t members);

}  // namespace hocket::comm

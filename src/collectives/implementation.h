// SPDX-License-Identifier: Apache-2.0
// Execution of collectives between processes: the matching collective of c10d (plan.collectives:
// c10d), and memory beyond the operands.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/comm_op.h"

namespace hocket::comm {

/// Implementation of collectives between processes, where a program does not spell them as
/// messages.
enum class Collectives : uint8_t {
  own,   ///< by their records: reductions are ordered, so results are bitwise equal to local ranks
  c10d,  ///< by the transport's collectives, where it has a counterpart
};

/// Collective of the transport that executes an op.
enum class ByTransport : uint8_t {
  none,  ///< no counterpart: the op runs by its record
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,  ///< moves the slices that members read; then the op runs by its record
};
/// Returns the transport's counterpart of an op on inputs of types `in`.
ByTransport by_transport(const Op& op, const Attrs& attrs, std::span<const TensorType> in);
/// Returns the counterpart among `members` ranks: none where the ranks' parts of a gathered or
/// scattered tensor differ in size.
ByTransport by_transport_among(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                               int64_t members);

/// Alignment in bytes of the parts of a collective's scratch memory.
inline constexpr int64_t kScratchAlign = 64;

/// Returns an upper bound of a member's transport memory in a collective: copies of the operands
/// for c10d's collectives, messages (exchange_bytes) for those executed by their records. Routed
/// tensors count with even routing. 0 if the types do not fit the op.
int64_t transport_bytes(Collectives collectives, const Op& op, const Attrs& attrs,
                        std::span<const TensorType> in, std::span<const TensorType> out,
                        int64_t members);

}  // namespace hocket::comm

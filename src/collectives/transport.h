// SPDX-License-Identifier: Apache-2.0
// How collectives are done between processes, and what they take of memory beyond their operands;
// what the transport's own (plan.collectives: c10d) are to the communication ops.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/comm_op.h"

namespace hocket::comm {

/// How collectives are done between processes that a program does not write as messages.
enum class Collectives : uint8_t {
  own,   ///< by their records: in the order of sums, and so in their bits, as between threads
  c10d,  ///< by the transport's own, where it has one
};

/// The collective of the transport that does an op.
enum class ByTransport : uint8_t {
  none,  ///< there is no counterpart: the op is done by its record
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,  ///< of what members read of each other; then the op is done by its record
};
ByTransport by_transport(const Op& op, const Attrs& attrs, std::span<const TensorType> in);
/// Among so many members: none where they have unlike parts of what is gathered or scattered.
ByTransport by_transport_among(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                               int64_t members);

/// Parts of a collective's memory begin at multiples of so many bytes.
inline constexpr int64_t kScratchAlign = 64;

/// Most memory of the transport that a member of a collective has, of so many that are processes:
/// of c10d's the copies of its operands that are read and written then, of ours, which does what
/// has no counterpart, messages (exchange_bytes). Of routed rows those that even routing sends. 0:
/// its types do not fit.
int64_t transport_bytes(Collectives how, const Op& op, const Attrs& attrs,
                        std::span<const TensorType> in, std::span<const TensorType> out,
                        int64_t members);

}  // namespace hocket::comm

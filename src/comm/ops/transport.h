// SPDX-License-Identifier: Apache-2.0
// What the transport's own collectives (plan.collectives: c10d) are to the communication ops.
#pragma once

#include <cstdint>
#include <span>

#include "comm/ops/comm_op.h"

namespace hocket::comm {

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

/// Bytes of copies of a member's operands that the transport reads and writes then; of routed rows,
/// those that even routing sends. 0: there is no counterpart.
int64_t transport_bytes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                        std::span<const TensorType> out);

}  // namespace hocket::comm

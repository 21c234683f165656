// SPDX-License-Identifier: Apache-2.0
// Measures the links between ranks, by what their communicators make of them.
#pragma once

#include <map>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace hocket::comm {

/// α-β of a message between two ranks: time = latency + bytes / bandwidth.
struct LinkTimes {
  double latency_s = 0;
  double bytes_per_s = 0;
};

/// Times round trips of small and of large messages between two ranks that are threads (about 0.2
/// s).
LinkTimes time_local_link();

/// The same between processes, by the name of the link: "intra" between the first two ranks of the
/// first node, "inter" between the first ranks of the first two nodes; those that there are.
/// Bandwidth is that of a collective of two members, in both directions at once, of as many bytes
/// as make the latency small (about a second for each link). Every process calls this, with the
/// ranks that are here, and gets what was measured. Throws Error when a rank does not come.
std::map<std::string, LinkTimes> time_links(World& world, std::span<const int32_t> here,
                                            int64_t ranks_per_node);

}  // namespace hocket::comm

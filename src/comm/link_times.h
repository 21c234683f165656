// SPDX-License-Identifier: Apache-2.0
// Measures the links between ranks, by what their communicators make of them.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace hocket::comm {

/// α-β of a link: a message takes latency + bytes / bandwidth. A collective of two members, in
/// which either gets so many bytes of the other, takes as much with figures of its own: both
/// directions are in use, sums and copies are part of it, and so is that each end comes from work,
/// not at the same moment, and wakes a thread that has slept.
struct LinkTimes {
  double latency_s = 0, bytes_per_s = 0;
  double collective_latency_s = 0, collective_bytes_per_s = 0;
  /// How many times as long the ranks' work takes beside such collectives, and these beside it.
  double work_beside = 1, collective_beside = 1;
};

/// A piece of work of a rank, always the same, of some 0.1 ms.
using Work = std::function<void()>;

/// Between two ranks that are threads. `work`: of each of them.
LinkTimes time_local_link(const std::function<Work()>& work);

/// The same between processes, by the name of the link: "intra" between the first two ranks of the
/// first node, "inter" between the first ranks of the first two nodes; those that there are. About
/// a second for each. Every process calls this, with the ranks that are here, and gets what
/// was measured. Throws Error when a rank does not come.
std::map<std::string, LinkTimes> time_links(World& world, std::span<const int32_t> here,
                                            int64_t ranks_per_node,
                                            const std::function<Work()>& work);

}  // namespace hocket::comm

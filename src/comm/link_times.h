// SPDX-License-Identifier: Apache-2.0
// Measurement of the links between ranks, through their communicators.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace hocket::comm {

/// α-β model of a link: a message takes latency + bytes / bandwidth. A collective of two members
/// has figures of its own. There both directions are used, reductions and copies are included, and
/// each end comes from work at a different moment and wakes a sleeping thread.
struct LinkTimes {
  double latency_s = 0, bytes_per_s = 0;
  double collective_latency_s = 0, collective_bytes_per_s = 0;
  /// Slowdown factors of work beside such collectives, and of collectives beside work.
  double compute_slowdown = 1, collective_slowdown = 1;
};

/// Fixed piece of a rank's work, of about 0.1 ms.
using Work = std::function<void()>;

/// Measures between two ranks that are threads, with this work. `max_repeats` (from 3 to 100 are
/// heeded) shortens it.
LinkTimes time_local_link(const std::function<Work()>& work, int max_repeats);

/// Measures between processes. The result is by link: "intra" joins the first two ranks of the
/// first node, "inter" the first ranks of the first two nodes; only existing links are listed.
/// Takes at most about a second per link. Collective: every process calls it with its local ranks
/// and the same max_repeats, and gets the same result. Throws Error when a rank does not come.
std::map<std::string, LinkTimes> time_links(World& world, std::span<const int32_t> here,
                                            int64_t ranks_per_node,
                                            const std::function<Work()>& work, int max_repeats);

}  // namespace hocket::comm

// SPDX-License-Identifier: Apache-2.0
// Closed forms of a collective's time on a cluster: every algorithm of an op, in every protocol,
// over the levels of links that its group spans. docs/cluster-files.md has the formulas.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "collectives/comm_op.h"
#include "cost/cluster.h"
#include "cost/network.h"

namespace hocket::cost {

/// One way to do a collective, and what its time is made of.
struct Way {
  std::string algorithm;  ///< "ring", "tree", "chain", "direct", "rooted", "message", ..
  bool short_messages = false;
  double start_s = 0;    ///< once
  double latency_s = 0;  ///< of all steps
  double data_s = 0;     ///< at the busiest link
  std::string busiest;   ///< "intra", "inter", or the name of a level
  /// Seconds for which the bytes keep a link of each block of the network busy, at all that it can
  /// carry.
  std::array<double, kLinkBlocks> busy_s = {};
  double seconds() const { return start_s + latency_s + data_s; }
};

/// What one level of links does for a collective; the fit solves for its constants.
struct Passage {
  bool inter = false;   ///< of links.inter or beyond, else of links.intra
  int32_t level = -1;   ///< of Topology::levels; -1: the link class itself
  double steps = 0;     ///< messages after each other whose slowest link is this one
  double bytes = 0;     ///< through the uplink of one of its sets
  double adapters = 1;  ///< that share these bytes
};

/// What an algorithm asks of every level that a group spans.
std::vector<Passage> passages(const Cluster& cluster, const comm::Algorithm& algorithm,
                              const GroupShape& shape);

/// The constants that a link class has for an algorithm: its own, else the class's; of the protocol
/// of short messages, where it has one, else those of long ones.
Curve curve_of(const Link& link, const std::string& algorithm, bool short_messages);

/// All ways to do it, the fastest first; of equal ones in the order of `algorithms`, the long
/// protocol first.
std::vector<Way> ways(const Cluster& cluster, const std::vector<comm::Algorithm>& algorithms,
                      const GroupShape& shape);

/// A sum over all, or a half of it, inside nodes first (cluster.algorithms); empty if the group
/// does not lie evenly on several nodes. `ring`: that over all members.
std::vector<Way> hierarchical(const Cluster& cluster, const comm::Algorithm& ring,
                              const GroupShape& shape);

}  // namespace hocket::cost

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

/// Time of a collective by one algorithm and protocol, in parts.
struct AlgorithmTime {
  std::string algorithm;  ///< "ring", "tree", "chain", "direct", "rooted", "message", ..
  bool short_messages = false;
  double start_s = 0;    ///< once per transfer
  double latency_s = 0;  ///< sum over all steps
  double data_s = 0;     ///< time of the bytes at the busiest link
  std::string busiest;   ///< "intra", "inter", or the name of a level
  /// Seconds for which the bytes would occupy a link of each block of the network, at its full
  /// capacity.
  std::array<double, kLinkBlocks> busy_s = {};
  double seconds() const { return start_s + latency_s + data_s; }
};

/// Demand of a collective on one level of links; the fit solves for the level's constants.
struct LevelDemand {
  bool inter = false;   ///< links.inter or a level beyond; else within a node
  int32_t level = -1;   ///< index in Topology::levels; -1: the link class itself
  double steps = 0;     ///< sequential messages whose slowest link is this one
  double bytes = 0;     ///< through the uplink of one of its sets
  double adapters = 1;  ///< adapters that share these bytes
};

/// Returns the demand of an algorithm on every level that a group spans.
std::vector<LevelDemand> level_demands(const Cluster& cluster, const comm::Algorithm& algorithm,
                                       const GroupShape& shape);

/// Returns the constants of a link class for an algorithm: those of the algorithm if given, else
/// the class's. With `short_messages`, those of the short protocol if given.
Curve curve_of(const Link& link, const std::string& algorithm, bool short_messages);

/// Returns the times by all algorithms and protocols, the fastest first. Ties are in the order of
/// `algorithms`, the long protocol first.
std::vector<AlgorithmTime> algorithm_times(const Cluster& cluster,
                                           const std::vector<comm::Algorithm>& algorithms,
                                           const GroupShape& shape);

/// Returns the hierarchical forms of an all-reduce, reduce-scatter or all-gather, inside nodes
/// first (cluster.algorithms). Empty if the group is not spread evenly over several nodes. `ring`:
/// the ring over all members.
std::vector<AlgorithmTime> hierarchical(const Cluster& cluster, const comm::Algorithm& ring,
                                        const GroupShape& shape);

}  // namespace hocket::cost

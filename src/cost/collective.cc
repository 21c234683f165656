// SPDX-License-Identifier: Apache-2.0
// Implements the closed forms of rings, trees, direct exchanges and hierarchical reductions over
// levels of links. As in NCCL's tuning (src/graph/tuning.cc), steps are counted by the link that
// they pass and data by the busiest link: Hockney's α-β model with one α and β per level.
#include "cost/collective.h"

#include <algorithm>
#include <cmath>

#include "cost/rooted.h"

namespace hocket::cost {
namespace {

/// Sets of one level that a group spans, and members in the set with fewest.
struct Tier {
  bool inter = false;
  int32_t level = -1;
  double sets = 1, fewest = 1;
};

/// Returns the tiers inside out: devices, levels below nodes, nodes, levels above them.
std::vector<Tier> tiers_of(const Cluster& cluster, const GroupShape& shape) {
  std::vector<Tier> tiers = {{false, -1, static_cast<double>(shape.members), 1}};
  const Tier node = {true, -1, static_cast<double>(shape.nodes),
                     static_cast<double>(shape.per_node)};
  bool past_nodes = false;
  const std::vector<SwitchLevel>& levels = cluster.topology.levels;
  for (size_t i = 0; i < levels.size(); ++i) {
    const bool above = levels[i].devices > cluster.devices_per_node;
    if (above && !past_nodes) {
      tiers.push_back(node);
      past_nodes = true;
    }
    tiers.push_back({above, static_cast<int32_t>(i), static_cast<double>(shape.levels[i].sets),
                     static_cast<double>(shape.levels[i].fewest)});
  }
  if (!past_nodes) {
    tiers.push_back(node);
  }
  return tiers;
}

/// Returns the fraction of an algorithm's steps whose slowest link belongs to `tier`; `above` is
/// the number of sets of the next wider tier. A ring enters and leaves each set once; a tree halves
/// the remaining sets.
double share_of_steps(const comm::Algorithm& algorithm, const Tier& tier, double above,
                      double members) {
  if (algorithm.direct) return tier.sets > 1 && above <= 1 ? 1 : 0;
  if (std::string_view(algorithm.name) == "tree") {
    const auto depth = [](double sets) { return std::ceil(std::log2(sets)); };
    return (depth(tier.sets) - depth(above)) / depth(members);
  }
  const auto passes = [](double sets) { return sets > 1 ? sets : 0; };
  return (passes(tier.sets) - passes(above)) / members;
}

double adapters_of(const Cluster& cluster, const GroupShape& shape) {
  return static_cast<double>(std::min<int64_t>(shape.per_node, cluster.adapters()));
}

/// Computes the time of concurrent level_demands in one protocol.
AlgorithmTime time_of(const Cluster& cluster, const std::string& algorithm,
                      const std::vector<LevelDemand>& level_demands, bool short_messages) {
  // Steps pay the latency of their link class and of every level below their own; data takes the
  // time of the busiest link; the start is that of the widest class that gives one.
  AlgorithmTime time;
  time.algorithm = algorithm;
  time.short_messages = short_messages;
  double below[2] = {0, 0};
  for (const LevelDemand& demand : level_demands) {
    const Link& link = demand.inter ? cluster.links.inter : cluster.links.intra;
    const Curve curve = curve_of(link, algorithm, short_messages);
    double bytes_per_s = curve.bandwidth.value * demand.adapters;
    double ramp =
        demand.bytes > 0 ? std::sqrt(curve.half_size.value * demand.adapters / demand.bytes) : 0;
    std::string name = demand.inter ? "inter" : "intra";
    size_t block = demand.inter ? 1 : 0;
    double carried = link.bytes_per_s() * demand.adapters;
    if (demand.level >= 0) {
      const SwitchLevel& level = cluster.topology.levels[static_cast<size_t>(demand.level)];
      below[demand.inter] += level.latency.value;
      bytes_per_s = cluster.uplink(level);
      if (demand.inter && cluster.topology.rails) {
        bytes_per_s *= demand.adapters / static_cast<double>(cluster.adapters());
      }
      ramp = 0;
      name = level.name;
      block = 2 + static_cast<size_t>(demand.level);
      carried = bytes_per_s;
    }
    if (curve.start.value > 0) {
      time.start_s = curve.start.value;
    }
    time.latency_s += demand.steps * (curve.latency.value + below[demand.inter]);
    const double data = demand.bytes > 0 ? demand.bytes / bytes_per_s * (1 + ramp) : 0;
    time.busy_s[block] += demand.bytes > 0 ? demand.bytes / carried : 0;
    if (data > time.data_s || time.busiest.empty()) {
      time.data_s = data;
      time.busiest = name;
    }
  }
  return time;
}

bool has_short(const Cluster& cluster, const std::vector<LevelDemand>& level_demands) {
  return std::any_of(level_demands.begin(), level_demands.end(), [&](const LevelDemand& demand) {
    return (demand.inter ? cluster.links.inter : cluster.links.intra).short_messages.given();
  });
}

void sort_by_time(std::vector<AlgorithmTime>* times) {
  std::stable_sort(times->begin(), times->end(),
                   [](const AlgorithmTime& left, const AlgorithmTime& right) {
                     return left.seconds() < right.seconds();
                   });
}

}  // namespace

std::vector<LevelDemand> level_demands(const Cluster& cluster, const comm::Algorithm& algorithm,
                                       const GroupShape& shape) {
  std::vector<LevelDemand> list;
  const std::vector<Tier> tiers = tiers_of(cluster, shape);
  const double members = shape.members;
  for (size_t i = 0; i < tiers.size(); ++i) {
    const Tier& tier = tiers[i];
    const double above = i + 1 < tiers.size() ? tiers[i + 1].sets : 1;
    // Adapters are beside devices: traffic that leaves a node passes no link inside it, but all
    // levels above.
    const bool used = tier.inter ? tier.sets > 1 : tier.sets > above;
    if (!used) continue;
    LevelDemand demand{.inter = tier.inter, .level = tier.level};
    demand.steps = algorithm.rounds * share_of_steps(algorithm, tier, above, members);
    demand.bytes = algorithm.bytes;
    const bool rooted = std::string_view(algorithm.name) == kRooted;
    if (algorithm.direct && members > 1) {
      const double reached = tier.inter ? members : static_cast<double>(shape.per_node);
      const double busy = rooted ? 1 : tier.fewest;  // members of a set with parts for others
      demand.bytes *= busy * std::max(0.0, reached - tier.fewest) / (members - 1);
    }
    if (tier.inter) {
      demand.adapters = rooted ? 1 : adapters_of(cluster, shape);
    }
    list.push_back(demand);
  }
  return list;
}

Curve curve_of(const Link& link, const std::string& algorithm, bool short_messages) {
  if (short_messages && link.short_messages.given()) return link.short_messages;
  if (algorithm == "tree" && link.tree.given()) return link.tree;
  const bool direct = algorithm == "direct" || algorithm == "exchange" || algorithm == kRooted;
  if (direct && link.direct.given()) return link.direct;
  if (algorithm == "message" && link.message.given()) return link.message;
  return link.long_messages();
}

std::vector<AlgorithmTime> algorithm_times(const Cluster& cluster,
                                           const std::vector<comm::Algorithm>& algorithms,
                                           const GroupShape& shape) {
  std::vector<AlgorithmTime> list;
  for (const comm::Algorithm& algorithm : algorithms) {
    const std::vector<LevelDemand> through = level_demands(cluster, algorithm, shape);
    list.push_back(time_of(cluster, algorithm.name, through, false));
    if (has_short(cluster, through)) {
      list.push_back(time_of(cluster, algorithm.name, through, true));
    }
  }
  sort_by_time(&list);
  return list;
}

std::vector<AlgorithmTime> hierarchical(const Cluster& cluster, const comm::Algorithm& ring,
                                        const GroupShape& shape) {
  // Blocks are reduced inside nodes, then among the members of equal number, one per node, and
  // gathered inside nodes. The phases run one after another, and all are rings.
  if (shape.nodes < 2 || shape.per_node < 2 || shape.members != shape.nodes * shape.per_node) {
    return {};
  }
  const double members = shape.members, nodes = shape.nodes, per_node = shape.per_node;
  const double phases = ring.rounds / (members - 1);
  const double payload = ring.bytes / phases * members / (members - 1);
  GroupShape inside{shape.per_node, 1, shape.per_node};
  GroupShape across{shape.nodes, shape.nodes, 1};
  for (size_t i = 0; i < cluster.topology.levels.size(); ++i) {
    const bool above = cluster.topology.levels[i].devices > cluster.devices_per_node;
    const Spread& spread = shape.levels[i];
    inside.levels[i] = above ? Spread{1, shape.per_node}
                             : Spread{std::max(1, spread.sets / shape.nodes), spread.fewest};
    across.levels[i] = above ? Spread{spread.sets, std::max(1, spread.fewest / shape.per_node)}
                             : Spread{shape.nodes, 1};
  }
  const comm::Algorithm near{.name = "ring",
                             .rounds = phases * (per_node - 1),
                             .bytes = phases * (per_node - 1) / per_node * payload};
  const comm::Algorithm far{.name = "ring",
                            .rounds = phases * (nodes - 1),
                            .bytes = phases * (nodes - 1) / nodes * payload};
  const std::vector<LevelDemand> first = level_demands(cluster, near, inside);
  std::vector<LevelDemand> second = level_demands(cluster, far, across);
  for (LevelDemand& demand : second) {
    demand.adapters = adapters_of(cluster, shape);
  }
  std::vector<AlgorithmTime> list;
  for (const bool short_messages : {false, true}) {
    if (short_messages && !has_short(cluster, first) && !has_short(cluster, second)) continue;
    const AlgorithmTime in = time_of(cluster, "ring", first, short_messages);
    AlgorithmTime both = time_of(cluster, "ring", second, short_messages);
    both.algorithm = "hierarchical";
    both.start_s = std::max(in.start_s, both.start_s);
    both.latency_s += in.latency_s;
    if (in.data_s > both.data_s) {
      both.busiest = in.busiest;
    }
    both.data_s += in.data_s;
    for (size_t block = 0; block < kLinkBlocks; ++block) {
      both.busy_s[block] += in.busy_s[block];
    }
    list.push_back(both);
  }
  sort_by_time(&list);
  return list;
}

}  // namespace hocket::cost

// SPDX-License-Identifier: Apache-2.0
#include "planner/messages.h"

#include <algorithm>
#include <vector>

#include "collectives/comm_op.h"

namespace hocket::planner {

namespace {

/// Index of the adapters in cost::AlgorithmTime::busy_s.
constexpr size_t kAdapters = 1;

cost::GroupShape shape_of_two(const cost::Cluster& cluster, int64_t distance) {
  const std::vector<int32_t> ranks = {0, static_cast<int32_t>(distance)};
  return cluster.shape(ranks);
}

/// Returns whether some device of the one rank is on another node than its peer of the other rank.
bool leaves_node(int64_t from, int64_t to, int64_t devices, int64_t per_node) {
  const auto is_same = [&](int64_t one, int64_t other) {
    return one / per_node == other / per_node;
  };
  return !is_same(from * devices, to * devices) ||
         !is_same((from + 1) * devices - 1, (to + 1) * devices - 1);
}

}  // namespace

double beside_others_s(const cost::AlgorithmTime& time, const cost::Cluster& cluster, double groups,
                       double used) {
  const double each = groups * used / static_cast<double>(cluster.adapters());
  const double carried = time.busy_s[kAdapters] * std::max(1.0, each);
  return time.start_s + time.latency_s + std::max(time.data_s, carried);
}

Messages::Messages(const cost::CostModel& costs, int64_t devices, double bytes)
    : devices_(devices), per_node_(costs.cluster().devices_per_node) {
  const cost::Cluster& cluster = costs.cluster();
  const auto time = [&](int64_t distance) {
    const cost::GroupShape shape = shape_of_two(cluster, distance);
    return costs.algorithm_times(comm::op(comm::Id::send), bytes, shape.nodes > 1, shape).front();
  };
  if (devices < per_node_) {
    inside_s_ = time(devices).seconds();
  }
  if (cluster.capacity() > std::max(devices, per_node_)) {
    const cost::AlgorithmTime across = time(std::max(devices, per_node_));
    alone_s_ = across.seconds();
    adapter_s_ = std::min(across.busy_s[kAdapters], across.data_s);
    across_s_ =
        beside_others_s(across, cluster, static_cast<double>(std::min(devices, per_node_)), 1);
  }
}

double Messages::seconds(int64_t from, int64_t to) const {
  return leaves_node(from, to, devices_, per_node_) ? across_s_ : inside_s_;
}

Messages::Load Messages::load_of(const PipelineShape& shape, const cost::Cluster& cluster,
                                 int64_t devices) {
  Load load;
  const int64_t per_node = cluster.devices_per_node;
  const auto ranks = std::ssize(shape.ranks);
  std::vector<double> leaving(static_cast<size_t>((ranks * devices - 1) / per_node + 1), 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rank > 0) {
      (leaves_node(rank - 1, rank, devices, per_node) ? load.hops_across : load.hops_inside) += 1;
    }
    for (int64_t device = rank * devices; device < (rank + 1) * devices; ++device) {
      double inside = 0, across = 0;
      for (const auto& [to, count] : shape.ranks[static_cast<size_t>(rank)].sends) {
        const int64_t peer = device + (to - rank) * devices;
        (peer / per_node == device / per_node ? inside : across) += count;
      }
      load.inside = std::max(load.inside, inside);
      load.across = std::max(load.across, across);
      leaving[static_cast<size_t>(device / per_node)] += across;
    }
  }
  load.adapter =
      *std::max_element(leaving.begin(), leaving.end()) / static_cast<double>(cluster.adapters());
  return load;
}

double Messages::lower_bound_s(const Load& load) const {
  return std::max({load.inside * inside_s_, load.across * alone_s_, load.adapter * adapter_s_});
}

double Messages::shared_s(const Load& load) const {
  return std::max({load.inside * inside_s_, load.across * across_s_, load.adapter * adapter_s_});
}

}  // namespace hocket::planner

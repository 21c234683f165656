// SPDX-License-Identifier: Apache-2.0
#include "planner/bottleneck.h"

#include <utility>

namespace hocket::planner {

namespace {

/// Applies a change to the devices of every type.
template <class Change>
void for_devices(cost::Cluster* cluster, const Change& change) {
  change(cluster->device);
  for (cost::NodeGroup& nodes : cluster->heterogeneous_nodes) {
    change(nodes.device);
  }
}

void raise_arithmetic(cost::Device& device) {
  cost::Peak& peak = device.peak;
  for (cost::Rate* rate : {&peak.f4, &peak.f8, &peak.bf16, &peak.f32, &peak.f64}) {
    rate->value *= kBetter;
  }
}

void raise_memory(cost::Device& device) { device.memory_bandwidth.value *= kBetter; }

void shorten_launches(cost::Device& device) {
  for (cost::Seconds* seconds : {&device.launch, &device.host_launch, &device.host_launch_expert}) {
    seconds->value /= kBetter;
  }
}

/// Raises the bandwidth of links inside nodes, or between them, with the switches and the measured
/// times of their groups.
void raise_links(cost::Cluster* cluster, bool inside) {
  const auto raise = [&](cost::Links& links) {
    cost::Link& link = inside ? links.intra : links.inter;
    link.bandwidth.value *= kBetter;
    for (cost::Curve* curve : {&link.short_messages, &link.tree, &link.direct, &link.message}) {
      curve->bandwidth.value *= kBetter;
    }
  };
  raise(cluster->links);
  for (cost::NodeGroup& nodes : cluster->heterogeneous_nodes) {
    raise(nodes.links);
  }
  for (cost::SwitchLevel& level : cluster->topology.levels) {
    if ((level.devices < cluster->devices_per_node) == inside) {
      level.bandwidth.value *= kBetter;
    }
  }
  for (cost::MeasuredTimes& times : cluster->measured) {
    for (double& us : times.us) {
      us /= (times.nodes == 1) == inside ? kBetter : 1;
    }
  }
}

}  // namespace

std::vector<BetterResource> better_resources(const Trial& trial) {
  const cost::Cluster& cluster = trial.cluster();
  const bool has_inside = cluster.devices_per_node > 1, has_network = cluster.nodes > 1;
  std::vector<BetterResource> found;
  if (trial.profile()) {
    found.push_back({"kernels", cluster, cost::scaled(*trial.profile(), kBetter, 1)});
    found.push_back({"links", cluster, cost::scaled(*trial.profile(), 1, kBetter)});
    return found;
  }
  const auto add = [&](const char* name) -> cost::Cluster* {
    return &found.emplace_back(BetterResource{name, cluster, std::nullopt}).cluster;
  };
  for_devices(add("arithmetic"), raise_arithmetic);
  for_devices(add("memory bandwidth"), raise_memory);
  if (cluster.device.launch.value + cluster.device.host_launch.value > 0) {
    for_devices(add("kernel launches"), shorten_launches);
  }
  if (has_inside) {
    raise_links(add("links inside nodes"), true);
  }
  if (has_network) {
    raise_links(add("network"), false);
  }
  return found;
}

}  // namespace hocket::planner

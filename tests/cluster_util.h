// SPDX-License-Identifier: Apache-2.0
// A cluster with round numbers. A test sets only the values that it is about.
#pragma once

#include <cstdint>

#include "cost/cluster.h"

namespace hocket::test {

/// Returns a link without a source; `efficiency` is the share of the bandwidth that is reached.
inline cost::Link link_of(double latency_s, double bytes_per_s, double efficiency = 1) {
  return {{latency_s, ""}, {bytes_per_s, ""}, {efficiency, ""}};
}

/// Returns `nodes` nodes of `per_node` devices, each of 1 TFLOP/s (f32) and 1 GB at 100 GB/s. Links
/// have 1 us and 100 GB/s inside nodes, 10 us and 10 GB/s between them.
inline cost::Cluster cluster_of(int64_t nodes, int64_t per_node) {
  cost::Cluster c;
  c.name = "test";
  c.nodes = nodes;
  c.devices_per_node = per_node;
  c.device.name = "test device";
  c.device.memory.value = 1e9;
  c.device.memory_bandwidth.value = 100e9;
  c.device.peak.f32.value = 1e12;
  c.links.intra = link_of(1e-6, 100e9);
  c.links.inter = link_of(10e-6, 10e9);
  return c;
}

/// Returns a level of leaf switches with `devices` devices below each.
inline cost::SwitchLevel leaves_of(int64_t devices, double oversubscription) {
  cost::SwitchLevel level;
  level.name = "leaf";
  level.devices = devices;
  level.oversubscription.value = oversubscription;
  return level;
}

}  // namespace hocket::test

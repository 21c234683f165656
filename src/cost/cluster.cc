// SPDX-License-Identifier: Apache-2.0
// Reading and checking cluster files.
#include "cost/cluster.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"

namespace hocket::cost {
namespace {

/// Every constant of a cluster with its path.
struct Seen {
  std::string path;
  double value;
  const std::string* source;
};

std::vector<Seen> constants(const Cluster& cluster) {
  std::vector<Seen> all;
  const auto add = [&](const char* path, const auto& k) {
    all.push_back({path, k.value, &k.source});
  };
  const Device& d = cluster.device;
  add("device.memory", d.memory);
  add("device.memory_bandwidth", d.memory_bandwidth);
  add("device.launch", d.launch);
  add("device.peak.bf16", d.peak.bf16);
  add("device.peak.f32", d.peak.f32);
  add("device.peak.f64", d.peak.f64);
  add("device.efficiency.matmul", d.efficiency.matmul);
  add("device.efficiency.attention", d.efficiency.attention);
  add("device.efficiency.memory", d.efficiency.memory);
  add("links.intra.latency", cluster.links.intra.latency);
  add("links.intra.bandwidth", cluster.links.intra.bandwidth);
  add("links.intra.efficiency", cluster.links.intra.efficiency);
  add("links.inter.latency", cluster.links.inter.latency);
  add("links.inter.bandwidth", cluster.links.inter.bandwidth);
  add("links.inter.efficiency", cluster.links.inter.efficiency);
  return all;
}

void finish(Cluster& cluster) {
  // A share that is not given is 1: the constant itself is what is reached.
  Efficiency& efficiency = cluster.device.efficiency;
  for (Fraction* fraction : {&efficiency.matmul, &efficiency.attention, &efficiency.memory,
                             &cluster.links.intra.efficiency, &cluster.links.inter.efficiency}) {
    if (fraction->value == 0) {
      fraction->value = 1;
    }
  }
}

}  // namespace

GroupShape Cluster::shape(std::span<const int32_t> ranks) const {
  GroupShape group_shape;
  group_shape.members = static_cast<int32_t>(ranks.size());
  // Ranks come in order, so that a node's members are neighbours; a send may come in reverse.
  std::vector<int32_t> nodes;
  nodes.reserve(ranks.size());
  for (int32_t rank : ranks) {
    nodes.push_back(node_of(rank));
  }
  if (!std::is_sorted(nodes.begin(), nodes.end())) {
    std::sort(nodes.begin(), nodes.end());
  }
  group_shape.nodes = 0;
  group_shape.per_node = group_shape.members;
  for (size_t i = 0; i < nodes.size();) {
    size_t j = i;
    while (j < nodes.size() && nodes[j] == nodes[i]) {
      ++j;
    }
    group_shape.per_node = std::min(group_shape.per_node, static_cast<int32_t>(j - i));
    ++group_shape.nodes;
    i = j;
  }
  return group_shape;
}

double Cluster::peak_flops(graph::DType dtype) const {
  using graph::DType;
  const Peak& p = device.peak;
  double value = p.f32.value;
  if (dtype == DType::bf16) {
    value = p.bf16.value;
  }
  if (dtype == DType::f64) {
    value = p.f64.value;
  }
  if (value <= 0) {
    fail(name, "the cluster gives no peak for {}; try adding device.peak.{}",
         graph::to_string(dtype), graph::to_string(dtype));
  }
  return value;
}

void Cluster::validate(const std::string& where) const {
  for (const Seen& k : constants(*this)) {
    const bool share = k.path.find("efficiency") != std::string::npos;
    const bool optional = share || k.path.find("peak") != std::string::npos ||
                          k.path == "device.launch" ||
                          (this_machine && k.path == "device.memory") ||
                          (nodes == 1 && k.path.starts_with("links.inter")) ||
                          (capacity() == 1 && k.path.starts_with("links"));
    if (!optional && k.value <= 0) {
      fail(where, "{} is missing or 0; expected {{value: ..., source: ...}} above 0", k.path);
    }
    if (share && k.value > 1) {
      fail(where, "{} is {}; expected a share between 0 and 1", k.path, k.value);
    }
  }
  if (this_machine && (cores_per_node > 0 || device.memory.value > 0)) {
    fail(where,
         "this_machine is true, and cores_per_node or device.memory is given; expected one or "
         "the other");
  }
  if (device.peak.bf16.value <= 0 && device.peak.f32.value <= 0 && device.peak.f64.value <= 0) {
    fail(where, "device.peak is empty; expected at least one of bf16, f32, f64");
  }
  if (capacity() > (int64_t{1} << 24)) {
    fail(where, "{} nodes of {} devices; expected at most 16 M ranks", nodes, devices_per_node);
  }
}

std::vector<std::string> Cluster::unsourced() const {
  std::vector<std::string> missing;
  for (const Seen& k : constants(*this)) {
    const bool given =
        k.value > 0 && !(k.path.find("efficiency") != std::string::npos && k.value == 1);
    if (given && k.source->empty()) {
      missing.push_back(k.path);
    }
  }
  return missing;
}

Cluster read_cluster(const std::string& path, const std::vector<std::string>& overrides) {
  Cluster cluster;
  read_config(cluster, path, overrides);
  finish(cluster);
  cluster.validate(path);
  return cluster;
}

Cluster parse_cluster(std::string_view text, const std::string& name) {
  Cluster cluster;
  parse_config(cluster, text, name);
  finish(cluster);
  cluster.validate(name);
  return cluster;
}

}  // namespace hocket::cost

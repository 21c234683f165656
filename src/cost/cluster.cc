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
  const auto add = [&](const char* path, const auto& constant) {
    all.push_back({path, constant.value, &constant.source});
  };
  const Device& device = cluster.device;
  add("device.memory", device.memory);
  add("device.memory_bandwidth", device.memory_bandwidth);
  add("device.launch", device.launch);
  add("device.peak.f4", device.peak.f4);
  add("device.peak.f8", device.peak.f8);
  add("device.peak.bf16", device.peak.bf16);
  add("device.peak.f32", device.peak.f32);
  add("device.peak.f64", device.peak.f64);
  add("device.efficiency.matmul", device.efficiency.matmul);
  add("device.efficiency.attention", device.efficiency.attention);
  add("device.efficiency.memory", device.efficiency.memory);
  add("links.intra.latency", cluster.links.intra.latency);
  add("links.intra.bandwidth", cluster.links.intra.bandwidth);
  add("links.intra.efficiency", cluster.links.intra.efficiency);
  add("links.inter.latency", cluster.links.inter.latency);
  add("links.inter.bandwidth", cluster.links.inter.bandwidth);
  add("links.inter.efficiency", cluster.links.inter.efficiency);
  return all;
}

}  // namespace

GroupShape Cluster::shape(std::span<const int32_t> ranks) const {
  GroupShape shape;
  shape.members = static_cast<int32_t>(ranks.size());
  // Ranks come in order, so that a node's members are neighbours; a send may come in reverse.
  std::vector<int32_t> nodes;
  nodes.reserve(ranks.size());
  for (int32_t rank : ranks) {
    nodes.push_back(node_of(rank));
  }
  if (!std::is_sorted(nodes.begin(), nodes.end())) {
    std::sort(nodes.begin(), nodes.end());
  }
  shape.nodes = 0;
  shape.per_node = shape.members;
  for (size_t i = 0; i < nodes.size();) {
    size_t end = i;
    while (end < nodes.size() && nodes[end] == nodes[i]) {
      ++end;
    }
    shape.per_node = std::min(shape.per_node, static_cast<int32_t>(end - i));
    ++shape.nodes;
    i = end;
  }
  return shape;
}

double Cluster::peak_flops(graph::DType dtype) const {
  // Types of one width share matrix units, and so a peak: both 8-bit ones, and both of 16 bits.
  // What the cluster does not give is an error, since no other peak stands for it.
  using graph::DType;
  double value = 0;
  const char* key = "";
  switch (dtype) {
    case DType::f4_e2m1:
      value = device.peak.f4.value;
      key = "f4";
      break;
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      value = device.peak.f8.value;
      key = "f8";
      break;
    case DType::bf16:
    case DType::f16:
      value = device.peak.bf16.value;
      key = "bf16";
      break;
    case DType::f32:
      value = device.peak.f32.value;
      key = "f32";
      break;
    case DType::f64:
      value = device.peak.f64.value;
      key = "f64";
      break;
    default:
      fail(name, "the arithmetic of {} has no peak; expected a floating-point type",
           graph::to_string(dtype));
  }
  if (value <= 0) {
    fail(name, "the cluster gives no peak for {}; try adding device.peak.{}",
         graph::to_string(dtype), key);
  }
  return value;
}

void Cluster::validate(const std::string& where) const {
  // A constant must be given unless there is a default for it, or nothing here could ask for it:
  // links of a cluster of one device, links between nodes of a cluster of one.
  for (const Seen& constant : constants(*this)) {
    const bool share = constant.path.find("efficiency") != std::string::npos;
    const bool optional = share || constant.path.find("peak") != std::string::npos ||
                          constant.path == "device.launch" ||
                          (this_machine && constant.path == "device.memory") ||
                          (nodes == 1 && constant.path.starts_with("links.inter")) ||
                          (capacity() == 1 && constant.path.starts_with("links"));
    if (!optional && constant.value <= 0) {
      fail(where, "{} is missing or 0; expected {{value: ..., source: ...}} above 0",
           constant.path);
    }
    if (share && (constant.value <= 0 || constant.value > 1)) {
      fail(where, "{} is {}; expected a share above 0 and at most 1", constant.path,
           constant.value);
    }
    if (constant.value > 0x1p60) {
      fail(where, "{} is {}; expected at most 2^60", constant.path, constant.value);
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
  for (const Seen& constant : constants(*this)) {
    const bool given =
        constant.value > 0 &&
        !(constant.path.find("efficiency") != std::string::npos && constant.value == 1);
    if (given && constant.source->empty()) {
      missing.push_back(constant.path);
    }
  }
  return missing;
}

Cluster read_cluster(const std::string& path, const std::vector<std::string>& overrides) {
  Cluster cluster;
  read_config(cluster, path, overrides);
  cluster.validate(path);
  return cluster;
}

Cluster parse_cluster(std::string_view text, const std::string& name) {
  Cluster cluster;
  parse_config(cluster, text, name);
  cluster.validate(name);
  return cluster;
}

}  // namespace hocket::cost

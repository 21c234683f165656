// SPDX-License-Identifier: Apache-2.0
// Implements: Cluster::validate and its parts, Cluster::unsourced (cluster.h).
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "collectives/comm_op.h"
#include "cost/cluster.h"
#include "ops/op.h"

namespace hocket::cost {
namespace {

/// A constant of a cluster with its path.
struct NamedConstant {
  std::string path;
  double value;
  const std::string* source;
};

/// Calls add(path, constant) for every constant of a link class.
template <class Add>
void add_link(const std::string& path, const Link& link, const Add& add) {
  add(path + ".latency", link.latency);
  add(path + ".bandwidth", link.bandwidth);
  add(path + ".efficiency", link.efficiency);
  add(path + ".start", link.start);
  add(path + ".half_size", link.half_size);
  const auto add_curve = [&](const char* name, const Curve& curve) {
    add(path + name + ".start", curve.start);
    add(path + name + ".latency", curve.latency);
    add(path + name + ".bandwidth", curve.bandwidth);
    add(path + name + ".half_size", curve.half_size);
  };
  add_curve(".short", link.short_messages);
  add_curve(".tree", link.tree);
  add_curve(".direct", link.direct);
  add_curve(".message", link.message);
}

std::vector<NamedConstant> constants(const Cluster& cluster) {
  std::vector<NamedConstant> all;
  const auto add = [&](const std::string& path, const auto& constant) {
    all.push_back({path, constant.value, &constant.source});
  };
  const Device& device = cluster.device;
  add("device.memory", device.memory);
  add("device.reserve.context", device.reserve.context);
  add("device.reserve.communicators", device.reserve.communicators);
  add("device.reserve.fragmentation", device.reserve.fragmentation);
  add("device.memory_bandwidth", device.memory_bandwidth);
  add("device.launch", device.launch);
  add("device.host_launch", device.host_launch);
  add("device.host_launch_expert", device.host_launch_expert);
  add("device.host.kernels", device.host.kernels);
  add("device.host.copies", device.host.copies);
  add("device.host.copy_latency", device.host.copy_latency);
  add("device.overlap.compute", device.overlap.compute);
  add("device.overlap.communication", device.overlap.communication);
  add("device.float8.maxima", device.float8.maxima);
  add("device.float8.copies", device.float8.copies);
  add("device.peak.f4", device.peak.f4);
  add("device.peak.f8", device.peak.f8);
  add("device.peak.bf16", device.peak.bf16);
  add("device.peak.f32", device.peak.f32);
  add("device.peak.f64", device.peak.f64);
  add("device.efficiency.matmul", device.efficiency.matmul);
  add("device.efficiency.matmul_f8", device.efficiency.matmul_f8);
  add("device.efficiency.attention", device.efficiency.attention);
  add("device.efficiency.memory", device.efficiency.memory);
  for (size_t i = 0; i < device.efficiency.of_types.size(); ++i) {
    const TypedShares& shares = device.efficiency.of_types[i];
    const std::string path = fmt::format("device.efficiency.of_types.{}", i);
    add(path + ".matmul", shares.matmul);
    add(path + ".attention", shares.attention);
  }
  add("device.price", device.price);
  add("framework.step", cluster.framework.step);
  add("framework.logits.memory", cluster.framework.logits.memory);
  add("framework.logits.split_memory", cluster.framework.logits.split_memory);
  add("framework.logits.traffic", cluster.framework.logits.traffic);
  add_link("links.intra", cluster.links.intra, add);
  add_link("links.inter", cluster.links.inter, add);
  for (size_t i = 0; i < cluster.topology.levels.size(); ++i) {
    const SwitchLevel& level = cluster.topology.levels[i];
    const std::string path = fmt::format("topology.levels.{}", i);
    add(path + ".bandwidth", level.bandwidth);
    add(path + ".oversubscription", level.oversubscription);
    add(path + ".latency", level.latency);
  }
  return all;
}

/// Throws Error for values that no machine has: a number without its unit is read as seconds, bytes
/// or bytes per second.
void expect_unit(const NamedConstant& constant, const std::string& where) {
  const auto ends_with = [&](std::string_view end) { return constant.path.ends_with(end); };
  const double value = constant.value;
  if (value <= 0) return;
  if ((ends_with("latency") || ends_with("start") || ends_with("launch")) && value >= 1) {
    fail(where, "{} is {}; expected less than a second, with its unit, such as 5us", constant.path,
         format_quantity(value, Unit::seconds));
  }
  if (ends_with("bandwidth") && value < 1000) {
    fail(where, "{} is {}; expected at least 1kB/s, with its unit, such as 400Gbit/s or 3.35TB/s",
         constant.path, format_quantity(value, Unit::bytes_s));
  }
  if (ends_with("device.memory") && value < 1024) {
    fail(where, "{} is {}; expected at least 1KiB, with its unit, such as 80GiB", constant.path,
         format_quantity(value, Unit::bytes));
  }
  if (constant.path.find("peak") != std::string::npos && value < 1000) {
    fail(where, "{} is {}; expected at least 1kFLOP/s, with its unit, such as 989TFLOP/s",
         constant.path, format_quantity(value, Unit::flops_s));
  }
}

}  // namespace

void Cluster::validate(const std::string& where) const {
  if (devices_per_node > kMaxDevices / nodes) {
    fail(where, "{} nodes of {} devices; expected at most 16 M ranks", nodes, devices_per_node);
  }
  if (cores_per_node > kMaxDevices) {
    fail(where, "cores_per_node is {}; expected at most 16 M", cores_per_node);
  }
  // A constant is required unless it has a default or nothing can use it: links of a cluster of one
  // device, links between nodes of a cluster of one node, links inside nodes of one device.
  for (const NamedConstant& constant : constants(*this)) {
    const bool share = constant.path.find("efficiency") != std::string::npos;
    const bool refines = constant.path.starts_with("topology") ||
                         std::count(constant.path.begin(), constant.path.end(), '.') > 2 ||
                         constant.path.ends_with(".start") || constant.path.ends_with("half_size");
    const bool factor = constant.path.find("overlap") != std::string::npos;
    const bool optional =
        share || refines || factor || constant.path.find("peak") != std::string::npos ||
        constant.path.starts_with("device.reserve") || constant.path.starts_with("framework") ||
        constant.path == "device.launch" || constant.path.starts_with("device.host_launch") ||
        constant.path.starts_with("device.host.") || constant.path.starts_with("device.float8") ||
        constant.path == "device.price" || (this_machine && constant.path == "device.memory") ||
        (nodes == 1 && constant.path.starts_with("links.inter")) ||
        (devices_per_node == 1 && constant.path.starts_with("links.intra")) ||
        (capacity() == 1 && constant.path.starts_with("links"));
    if (!optional && constant.value <= 0) {
      fail(where, "{} is missing or 0; expected {{value: ..., source: ...}} above 0",
           constant.path);
    }
    const bool may_be_absent = constant.path == "device.efficiency.matmul_f8" ||
                               constant.path.starts_with("device.efficiency.of_types.");
    const bool absent = may_be_absent && constant.value == 0;
    if (share && !absent && (constant.value <= 0 || constant.value > 1)) {
      fail(where, "{} is {}; expected a share above 0 and at most 1", constant.path,
           constant.value);
    }
    if (factor && !(constant.value >= 1 && constant.value <= 100)) {
      fail(where, "{} is {}; expected a factor from 1 to 100", constant.path, constant.value);
    }
    if (constant.value > 0x1p60) {
      fail(where, "{} is {}; expected at most 2^60", constant.path, constant.value);
    }
    expect_unit(constant, where);
  }
  if (this_machine && (cores_per_node > 0 || device.memory.value > 0)) {
    fail(where,
         "this_machine is true, and cores_per_node or device.memory is given; expected one or "
         "the other");
  }
  if ((device.host.kernels.value > 0) != (device.host.copies.value > 0)) {
    fail(where,
         "one of device.host.kernels and device.host.copies is missing or 0; expected both or "
         "neither");
  }
  if (device.host.given() && (this_machine || cores_per_node > 0)) {
    fail(where,
         "device.host is given, and ranks are threads whose device is the host; expected one or "
         "the other");
  }
  if (device.peak.bf16.value <= 0 && device.peak.f32.value <= 0 && device.peak.f64.value <= 0) {
    fail(where, "device.peak is empty; expected at least one of bf16, f32, f64");
  }
  for (const std::string& algorithm : algorithms) {
    if (algorithm != "hierarchical") {
      fail(where, "algorithms has \"{}\"; expected hierarchical", algorithm);
    }
  }
  validate_ops(where);
  validate_levels(where);
  validate_node_groups(where);
  validate_measured(where);
  validate_curves(where);
  validate_accuracy(where);
}

void Cluster::validate_accuracy(const std::string& where) const {
  if (!(device.reserve.fragmentation.value <= 1)) {
    fail(where, "device.reserve.fragmentation is {}; expected at most 1",
         device.reserve.fragmentation.value);
  }
  if (device.memory.value > 0 && !(device.plannable() > 0)) {
    fail(where, "device.reserve is all of device.memory; expected less");
  }
  if (accuracy.basis.empty() && !accuracy.given()) return;
  if (accuracy.basis != "fitted" && accuracy.basis != "datasheet" && accuracy.basis != "measured") {
    fail(where, "accuracy.basis is {}; expected fitted, measured or datasheet",
         quote(accuracy.basis));
  }
  if (!(accuracy.low > 0 && accuracy.low <= 1 && accuracy.high >= 1 && accuracy.high <= 100)) {
    fail(where, "accuracy has low {} and high {}; expected 0 < low <= 1 <= high <= 100",
         accuracy.low, accuracy.high);
  }
}

namespace {

std::vector<std::pair<std::string, const ShareCurve*>> curves_of(const Cluster& cluster) {
  const Efficiency& efficiency = cluster.device.efficiency;
  std::vector<std::pair<std::string, const ShareCurve*>> curves = {
      {"device.efficiency.matmul_by_flops", &efficiency.matmul_by_flops},
      {"device.efficiency.matmul_f8_by_flops", &efficiency.matmul_f8_by_flops},
      {"device.efficiency.attention_by_flops", &efficiency.attention_by_flops},
      {"device.efficiency.memory_by_bytes", &efficiency.memory_by_bytes},
      {"framework.speed_by_devices", &cluster.framework.speed_by_devices}};
  for (size_t i = 0; i < efficiency.of_types.size(); ++i) {
    const std::string path = fmt::format("device.efficiency.of_types.{}", i);
    curves.emplace_back(path + ".matmul_by_flops", &efficiency.of_types[i].matmul_by_flops);
    curves.emplace_back(path + ".attention_by_flops", &efficiency.of_types[i].attention_by_flops);
  }
  return curves;
}

}  // namespace

void Cluster::validate_curves(const std::string& where) const {
  std::set<std::string> seen;
  for (size_t i = 0; i < device.efficiency.of_types.size(); ++i) {
    const std::string path = fmt::format("device.efficiency.of_types.{}", i);
    const std::vector<std::string>& types = device.efficiency.of_types[i].types;
    if (types.empty()) fail(where, "{} names no type", path);
    for (const std::string& type : types) {
      bool is_floating = false;
      try {
        is_floating = graph::is_floating(graph::parse_dtype(type));
      } catch (const Error& error) {
        fail(where, "{}: {}", path, error.what());
      }
      if (!is_floating) fail(where, "{} names {}; expected floating-point types", path, type);
      if (!seen.insert(type).second) fail(where, "{} names {} again; expected once", path, type);
      if (device.efficiency.has_former_shares() && type.starts_with("f8_")) {
        fail(where,
             "{} has shares of {}, and device.efficiency.matmul_f8 or matmul_f8_by_flops is given, "
             "too; expected those of of_types alone",
             path, type);
      }
    }
  }
  for (const auto& [name, curve] : curves_of(*this)) {
    if (curve->size.size() != curve->share.size()) {
      fail(where, "{} has {} sizes and {} shares; expected equal numbers", name, curve->size.size(),
           curve->share.size());
    }
    for (size_t i = 0; i < curve->size.size(); ++i) {
      const double below = i > 0 ? curve->size[i - 1] : 0;
      const double share = curve->share[i];
      if (!(curve->size[i] > below && curve->size[i] < 1e30 && share > 0 && share <= 1)) {
        fail(where,
             "{}: share {} at {}; expected ascending sizes, and shares above 0 "
             "and at most 1",
             name, share, curve->size[i]);
      }
    }
  }
}

void Cluster::validate_ops(const std::string& where) const {
  const auto is_message = [](const std::string& op) {
    const comm::Id id = comm::find(op);
    return id != comm::Id::none && comm::op(id).role != comm::Role::collective;
  };
  const auto expect_op = [&](const std::string& key, const std::string& op, bool or_message) {
    if (!ops::find_or_null(op) && !(or_message && is_message(op))) {
      fail(where, "{} names the op {}; expected a registered op that is no {}", key, op,
           or_message ? "collective" : "communication");
    }
  };
  for (const std::string& op : device.host_reads.ops) {
    expect_op("device.host_reads", op, true);
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < device.unfused_ops.size(); ++i) {
    const UnfusedOps& unfused = device.unfused_ops[i];
    const std::string key = fmt::format("device.unfused_ops.{}", i);
    for (const std::string& op : unfused.ops) {
      expect_op(key, op, false);
      if (!seen.insert(op).second) {
        fail(where, "{} names {} a second time; expected each op once", key, op);
      }
    }
    if (unfused.kernels > 10'000 || !(unfused.traffic <= 10'000)) {
      fail(where, "{} has {} kernels that move {} times the bytes; expected at most 10000 each",
           key, unfused.kernels, unfused.traffic);
    }
  }
}

void Cluster::validate_measured(const std::string& where) const {
  for (size_t i = 0; i < measured.size(); ++i) {
    const MeasuredTimes& times = measured[i];
    const std::string path = fmt::format("measured.{}", i);
    if (times.bytes.empty() || times.bytes.size() != times.us.size()) {
      fail(where, "{} has {} sizes and {} times; expected equal numbers, at least one", path,
           times.bytes.size(), times.us.size());
    }
    for (size_t k = 0; k < times.bytes.size(); ++k) {
      const double below = k > 0 ? times.bytes[k - 1] : 0;
      if (!(times.bytes[k] > below && times.bytes[k] < 0x1p60 && times.us[k] > 0 &&
            times.us[k] < 1e15)) {
        fail(where, "{}: {} bytes take {} us; expected ascending sizes, and times above 0", path,
             times.bytes[k], times.us[k]);
      }
    }
  }
}

void Cluster::validate_levels(const std::string& where) const {
  // Links come first, then levels from the inside out; each level holds whole sets of the one
  // below.
  for (const auto& [name, link] : {std::pair{"intra", &links.intra}, {"inter", &links.inter}}) {
    for (const Curve* curve : {&link->short_messages, &link->tree, &link->direct, &link->message}) {
      const bool any =
          curve->start.value > 0 || curve->latency.value > 0 || curve->half_size.value > 0;
      if (any && !curve->given()) {
        fail(where, "links.{} has a protocol or algorithm without a bandwidth; expected one", name);
      }
    }
  }
  if (adapters() > devices_per_node) {
    fail(where, "topology.adapters_per_node is {}; expected at most the {} devices of a node",
         topology.adapters_per_node, devices_per_node);
  }
  if (topology.levels.size() > kMaxLevels) {
    fail(where, "topology.levels has {}; expected at most {}", topology.levels.size(), kMaxLevels);
  }
  int64_t below = 1;
  for (size_t i = 0; i < topology.levels.size(); ++i) {
    const SwitchLevel& level = topology.levels[i];
    const std::string path = fmt::format("topology.levels.{}", i);
    if (below < devices_per_node && level.devices > devices_per_node) {
      below = devices_per_node;
    }
    const bool inside = level.devices < devices_per_node;
    if (level.devices <= below || level.devices % below != 0 ||
        (inside && devices_per_node % level.devices != 0) || level.devices == devices_per_node) {
      fail(
          where,
          "{}.devices is {}; expected a multiple of the {} of the level below, and not a node's {} "
          "(links.inter describes nodes)",
          path, level.devices, below, devices_per_node);
    }
    if (level.devices > kMaxDevices) {
      fail(where, "{}.devices is {}; expected at most 16 M", path, level.devices);
    }
    if ((level.bandwidth.value > 0) == (level.oversubscription.value > 0)) {
      fail(where, "{} has {} of bandwidth and oversubscription; expected one of them", path,
           level.bandwidth.value > 0 ? "both" : "none");
    }
    below = level.devices;
  }
}

void Cluster::validate_node_groups(const std::string& where) const {
  if (!heterogeneous_nodes.empty() && this_machine) {
    fail(where,
         "this_machine is true and heterogeneous_nodes is given; expected no heterogeneous_nodes, "
         "since the machine is one "
         "node");
  }
  if (heterogeneous_nodes.size() > kMaxNodeGroups) {
    fail(where, "heterogeneous_nodes has {} entries; expected at most {}",
         heterogeneous_nodes.size(), kMaxNodeGroups);
  }
  int64_t next = 0;
  for (size_t i = 0; i < heterogeneous_nodes.size(); ++i) {
    const NodeGroup& nodes_here = heterogeneous_nodes[i];
    if (nodes_here.count > nodes - nodes_here.first) {
      fail(where, "heterogeneous_nodes.{} has count {} from node {} on; expected nodes 0 to {}", i,
           nodes_here.count, nodes_here.first, nodes - 1);
    }
    if (nodes_here.first < next) {
      fail(where,
           "heterogeneous_nodes.{} begins at node {}; expected at least {}: entries are in order",
           i, nodes_here.first, next);
    }
    next = nodes_here.first + nodes_here.count;
    for (const double times : {nodes_here.speed, nodes_here.bandwidth}) {
      if (!(times >= 0.001 && times <= 1000)) {
        fail(where, "heterogeneous_nodes.{} is {} times as fast; expected 0.001 to 1000", i, times);
      }
    }
  }
}

std::vector<std::string> Cluster::unsourced() const {
  std::vector<std::string> missing;
  for (size_t i = 0; i < heterogeneous_nodes.size(); ++i) {
    if ((heterogeneous_nodes[i].speed != 1 || heterogeneous_nodes[i].bandwidth != 1) &&
        heterogeneous_nodes[i].source.empty()) {
      missing.push_back(fmt::format("heterogeneous_nodes.{}", i));
    }
  }
  for (const auto& [name, curve] : curves_of(*this)) {
    if (curve->given() && curve->source.empty()) {
      missing.push_back(name);
    }
  }
  if (accuracy.given() && accuracy.source.empty()) {
    missing.push_back("accuracy");
  }
  if (!device.host_reads.ops.empty() && device.host_reads.source.empty()) {
    missing.push_back("device.host_reads");
  }
  for (size_t i = 0; i < device.unfused_ops.size(); ++i) {
    if (device.unfused_ops[i].source.empty()) {
      missing.push_back(fmt::format("device.unfused_ops.{}", i));
    }
  }
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i].source.empty()) {
      missing.push_back(fmt::format("measured.{}", i));
    }
  }
  for (const NamedConstant& constant : constants(*this)) {
    const bool given =
        constant.value > 0 && !((constant.path.find("efficiency") != std::string::npos ||
                                 constant.path.find("overlap") != std::string::npos) &&
                                constant.value == 1);
    if (given && constant.source->empty()) {
      missing.push_back(constant.path);
    }
  }
  return missing;
}

}  // namespace hocket::cost

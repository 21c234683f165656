// SPDX-License-Identifier: Apache-2.0
// Reading and validation of cluster files.
#include "cost/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "collectives/comm_op.h"
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

}  // namespace

namespace {

/// Returns the spread of ranks over consecutive sets of `devices` devices each.
Spread spread_of(std::span<const int32_t> ranks, int32_t devices) {
  // Ranks are ascending, so the members of a set are neighbours; a send may be descending.
  std::vector<int32_t> sets;
  sets.reserve(ranks.size());
  for (int32_t rank : ranks) {
    sets.push_back(rank / devices);
  }
  if (!std::is_sorted(sets.begin(), sets.end())) {
    std::sort(sets.begin(), sets.end());
  }
  Spread spread{0, static_cast<int32_t>(ranks.size())};
  for (size_t i = 0; i < sets.size();) {
    size_t end = i;
    while (end < sets.size() && sets[end] == sets[i]) {
      ++end;
    }
    spread.fewest = std::min(spread.fewest, static_cast<int32_t>(end - i));
    ++spread.sets;
    i = end;
  }
  return spread;
}

}  // namespace

GroupShape Cluster::shape(std::span<const int32_t> ranks) const {
  const Spread on_nodes = spread_of(ranks, static_cast<int32_t>(devices_per_node));
  GroupShape shape{static_cast<int32_t>(ranks.size()), on_nodes.sets, on_nodes.fewest};
  for (size_t i = 0; i < topology.levels.size(); ++i) {
    shape.levels[i] = spread_of(ranks, static_cast<int32_t>(topology.levels[i].devices));
  }
  if (!heterogeneous_nodes.empty()) {
    shape.device_types = 0;
    for (const int32_t rank : ranks) {
      shape.device_types |= uint64_t{1} << device_type_of(rank);
    }
  }
  return shape;
}

size_t Cluster::device_type_of_node(int64_t node) const {
  for (size_t i = 0; i < heterogeneous_nodes.size(); ++i) {
    if (node >= heterogeneous_nodes[i].first &&
        node < heterogeneous_nodes[i].first + heterogeneous_nodes[i].count)
      return i + 1;
  }
  return 0;
}

std::vector<int64_t> Cluster::ranks_of_device_types(int64_t ranks) const {
  std::vector<int64_t> count(num_device_types(), 0);
  for (int64_t first = 0; first < ranks; first += devices_per_node) {
    count[device_type_of_node(first / devices_per_node)] +=
        std::min(devices_per_node, ranks - first);
  }
  return count;
}

std::string Cluster::device_names(int64_t ranks) const {
  const std::vector<int64_t> count = ranks_of_device_types(ranks);
  std::vector<std::string> names;
  for (size_t device_type = 0; device_type < count.size(); ++device_type) {
    const std::string& name = device_of(device_type).name;
    if (count[device_type] > 0 && std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  return join(names, " and ");
}

int64_t Cluster::threads_per_rank(int64_t asked, int64_t ranks) const {
  if (asked > 0) return asked;
  const int64_t on_node = std::clamp<int64_t>(ranks, 1, devices_per_node);
  return std::max<int64_t>(1, cores_per_node / on_node);
}

Cluster Cluster::homogeneous(size_t device_type) const {
  Cluster even = *this;
  even.heterogeneous_nodes.clear();
  if (device_type > 0) {
    even.device = heterogeneous_nodes[device_type - 1].device;
    even.links = heterogeneous_nodes[device_type - 1].links;
  }
  return even;
}

namespace {

/// Keep the better of two constants: the greater or the smaller one.
template <Unit kUnit>
void keep_greater(Constant<kUnit>* best, const Constant<kUnit>& other) {
  if (other.value > best->value) {
    *best = other;
  }
}

template <Unit kUnit>
void keep_less(Constant<kUnit>* best, const Constant<kUnit>& other) {
  if (other.value < best->value) {
    *best = other;
  }
}

void keep_better(Peak* best, const Peak& other) {
  keep_greater(&best->f4, other.f4);
  keep_greater(&best->f8, other.f8);
  keep_greater(&best->bf16, other.bf16);
  keep_greater(&best->f32, other.f32);
  keep_greater(&best->f64, other.f64);
}

/// A curve is replaced by its highest share, so that no device does better at any size.
void keep_better(Efficiency* best, const Efficiency& other) {
  const auto highest = [](const Fraction& share, const ShareCurve& curve) {
    return curve.given() ? *std::max_element(curve.share.begin(), curve.share.end()) : share.value;
  };
  const auto keep = [&](Fraction* share, ShareCurve* curve, const Fraction& other_share,
                        const ShareCurve& other_curve) {
    share->value = std::max(highest(*share, *curve), highest(other_share, other_curve));
    *curve = {};
  };
  // Shares of single types, and of 8 bits, join those of all: no type does better than the best
  // one.
  const auto keep_typed = [&](const Efficiency& of) {
    for (const TypedShares& shares : of.of_types) {
      keep(&best->matmul, &best->matmul_by_flops, shares.matmul, shares.matmul_by_flops);
      keep(&best->attention, &best->attention_by_flops, shares.attention,
           shares.attention_by_flops);
    }
    keep(&best->matmul, &best->matmul_by_flops, of.matmul_f8, of.matmul_f8_by_flops);
  };
  keep_typed(Efficiency(*best));
  keep_typed(other);
  best->of_types.clear();
  best->matmul_f8 = {};
  best->matmul_f8_by_flops = {};
  keep(&best->matmul, &best->matmul_by_flops, other.matmul, other.matmul_by_flops);
  keep(&best->attention, &best->attention_by_flops, other.attention, other.attention_by_flops);
  keep(&best->memory, &best->memory_by_bytes, other.memory, other.memory_by_bytes);
}

/// Hosts without constants are left out: they can run nothing.
void keep_better(Host* best, const Host& other) {
  if (!best->given()) {
    *best = other;
  } else if (other.given()) {
    keep_greater(&best->kernels, other.kernels);
    keep_greater(&best->copies, other.copies);
    keep_less(&best->copy_latency, other.copy_latency);
  }
}

void keep_better(Device* best, const Device& other) {
  keep_greater(&best->memory, other.memory);
  keep_greater(&best->memory_bandwidth, other.memory_bandwidth);
  keep_less(&best->launch, other.launch);
  keep_less(&best->host_launch, other.host_launch);
  keep_less(&best->host_launch_expert, other.host_launch_expert);
  best->host_reads = {};
  keep_better(&best->host, other.host);
  best->unfused_ops.clear();
  keep_less(&best->overlap.compute, other.overlap.compute);
  keep_less(&best->overlap.communication, other.overlap.communication);
  keep_less(&best->float8.maxima, other.float8.maxima);
  keep_less(&best->float8.copies, other.float8.copies);
  keep_better(&best->peak, other.peak);
  keep_better(&best->efficiency, other.efficiency);
}

/// Keeps the higher bandwidth and the lower latency of two links, over all their curves.
/// Refinements are dropped: they could only slow the link down, or exceed its bandwidth for some
/// sizes.
void keep_better(Link* best, const Link& other) {
  const auto widest = [](const Link& link) {
    double bandwidth = link.bytes_per_s();
    for (const Curve* curve : {&link.short_messages, &link.tree, &link.direct, &link.message}) {
      bandwidth = std::max(bandwidth, curve->bandwidth.value);
    }
    return bandwidth;
  };
  const auto quickest = [](const Link& link) {
    double latency = link.latency.value;
    for (const Curve* curve : {&link.short_messages, &link.tree, &link.direct, &link.message}) {
      latency = curve->given() ? std::min(latency, curve->latency.value) : latency;
    }
    return latency;
  };
  const double bandwidth = std::max(widest(*best), widest(other));
  const double latency = std::min(quickest(*best), quickest(other));
  *best = {};
  best->bandwidth.value = bandwidth;
  best->latency.value = latency;
}

void scale_device(double speed, Device* device) {
  Peak& peak = device->peak;
  for (Rate* rate : {&peak.f4, &peak.f8, &peak.bf16, &peak.f32, &peak.f64}) {
    rate->value *= speed;
  }
  device->memory_bandwidth.value *= speed;
}

void scale_link(double bandwidth, Link* link) {
  link->bandwidth.value *= bandwidth;
  for (Curve* curve : {&link->short_messages, &link->tree, &link->direct, &link->message}) {
    curve->bandwidth.value *= bandwidth;
  }
}

using Files = std::vector<std::filesystem::path>;

Cluster read_cluster_file(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides, const Files& from);

/// Appends a file to those being read. Throws Error if it is among them: a cycle of references.
Files append_file(Files from, const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path);
  const auto again = std::find(from.begin(), from.end(), whole);
  if (again != from.end()) {
    std::string cycle;
    for (auto at = again; at != from.end(); ++at) {
      cycle += at->filename().string() + " -> ";
    }
    fail(path.string(), "the files named by heterogeneous_nodes form a cycle: {}{}; expected none",
         cycle, whole.filename().string());
  }
  from.push_back(whole);
  return from;
}

/// Fills in the devices and links of heterogeneous nodes. `folder`: base of relative file names;
/// `from`: the files being read.
void fill_in_node_groups(const std::filesystem::path& folder, const Files& from, Cluster* cluster) {
  for (NodeGroup& nodes : cluster->heterogeneous_nodes) {
    nodes.device = cluster->device;
    nodes.links = cluster->links;
    if (!nodes.cluster.empty()) {
      const Cluster other = read_cluster_file(folder / nodes.cluster, {}, from);
      if (other.this_machine || other.cores_per_node > 0 || cluster->cores_per_node > 0) {
        fail(cluster->name,
             "heterogeneous_nodes names {}, and ranks share cores there or here; try "
             "heterogeneous_nodes.speed",
             nodes.cluster);
      }
      nodes.device = other.device;
      nodes.links = other.links;
    }
    scale_device(nodes.speed, &nodes.device);
    scale_link(nodes.bandwidth, &nodes.links.intra);
    scale_link(nodes.bandwidth, &nodes.links.inter);
  }
}

Cluster read_cluster_file(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides, const Files& from) {
  const Files files = append_file(from, path);
  Cluster cluster;
  read_config(cluster, path.string(), overrides);
  cluster.validate(path.string());
  fill_in_node_groups(path.parent_path(), files, &cluster);
  return cluster;
}

}  // namespace

Cluster Cluster::at_best() const {
  Cluster best = *this;
  best.heterogeneous_nodes.clear();
  for (const NodeGroup& nodes : heterogeneous_nodes) {
    keep_better(&best.device, nodes.device);
    keep_better(&best.links.intra, nodes.links.intra);
    keep_better(&best.links.inter, nodes.links.inter);
  }
  return best;
}

double ShareCurve::at(double of_size) const {
  const auto above = std::lower_bound(size.begin(), size.end(), of_size);
  if (above == size.begin()) return share.front();
  if (above == size.end()) return share.back();
  const auto i = static_cast<size_t>(above - size.begin());
  const double way = std::log(of_size / size[i - 1]) / std::log(size[i] / size[i - 1]);
  return share[i - 1] + way * (share[i] - share[i - 1]);
}

const MeasuredTimes* Cluster::measured_on(std::string_view op, const GroupShape& shape) const {
  for (const MeasuredTimes& times : measured) {
    const bool even = shape.per_node * shape.nodes == shape.members;
    if (even && times.op == op && times.ranks == shape.members && times.nodes == shape.nodes) {
      return &times;
    }
  }
  return nullptr;
}

double Cluster::uplink(const SwitchLevel& level) const {
  if (level.bandwidth.value > 0) return level.bandwidth.value;
  const bool inside = level.devices < devices_per_node;
  const double below = inside ? static_cast<double>(level.devices) * links.intra.bytes_per_s()
                              : static_cast<double>(level.devices / devices_per_node * adapters()) *
                                    links.inter.bytes_per_s();
  return below / level.oversubscription.value;
}

double Cluster::peak_flops(graph::DType dtype) const {
  // Types of one width share matrix units, hence a peak: both 8-bit types, and both 16-bit types. A
  // missing peak is an error, since no other one can stand in for it.
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
      fail(name, "no peak for arithmetic in {}; expected a floating-point type",
           graph::to_string(dtype));
  }
  if (value <= 0) {
    fail(name, "the cluster gives no peak for {}; try adding device.peak.{}",
         graph::to_string(dtype), key);
  }
  return value;
}

namespace {

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
  // device, links between nodes of a cluster of one node.
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
  if (accuracy.basis != "fitted" && accuracy.basis != "datasheet") {
    fail(where, "accuracy.basis is {}; expected fitted or datasheet", quote(accuracy.basis));
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
      try {
        graph::parse_dtype(type);
      } catch (const Error& error) {
        fail(where, "{}: {}", path, error.what());
      }
      if (!seen.insert(type).second) fail(where, "{} names {} again; expected once", path, type);
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

Cluster read_cluster(const std::string& path, const std::vector<std::string>& overrides) {
  // A name without a folder probably means one of the shipped clusters.
  if (path.find('/') == std::string::npos && !file_exists(path)) {
    fail(path,
         "no such file; the clusters that come with Hocket are in "
         "configs/clusters, e.g. configs/clusters/h100-64x8.yaml");
  }
  return read_cluster_file(path, overrides, {});
}

Cluster parse_cluster(std::string_view text, const std::string& name) {
  Cluster cluster;
  parse_config(cluster, text, name);
  cluster.validate(name);
  fill_in_node_groups({}, {}, &cluster);
  return cluster;
}

}  // namespace hocket::cost

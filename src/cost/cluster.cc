// SPDX-License-Identifier: Apache-2.0
// Reading of cluster files; cluster_validate.cc checks them.
#include "cost/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "cost/datasheets.h"
#include "cost/known_clusters.h"

namespace hocket::cost {
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
    even.accuracy = heterogeneous_nodes[device_type - 1].accuracy;
  }
  return even;
}

namespace {

/// Keeps the better of two constants: the greater or the smaller one.
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

/// Keeps the better of both. A curve is replaced by its highest share, so that no device does
/// better at any size.
void keep_better(Efficiency* best, const Efficiency& other) {
  const auto highest = [](const Fraction& share, const ShareCurve& curve) {
    return curve.given() ? *std::max_element(curve.share.begin(), curve.share.end()) : share.value;
  };
  const auto keep = [&](Fraction* share, ShareCurve* curve, const Fraction& other_share,
                        const ShareCurve& other_curve) {
    share->value = std::max(highest(*share, *curve), highest(other_share, other_curve));
    *curve = {};
  };
  // Shares of single types join those of all: no type does better than the best one.
  const auto keep_typed = [&](const Efficiency& of) {
    for (const TypedShares& shares : of.of_types) {
      keep(&best->matmul, &best->matmul_by_flops, shares.matmul, shares.matmul_by_flops);
      keep(&best->attention, &best->attention_by_flops, shares.attention,
           shares.attention_by_flops);
    }
  };
  keep_typed(Efficiency(*best));
  keep_typed(other);
  best->of_types.clear();
  keep(&best->matmul, &best->matmul_by_flops, other.matmul, other.matmul_by_flops);
  keep(&best->attention, &best->attention_by_flops, other.attention, other.attention_by_flops);
  keep(&best->memory, &best->memory_by_bytes, other.memory, other.memory_by_bytes);
}

/// Keeps the better of two hosts. One without constants is left out: it can run nothing.
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
  if (other.plannable() > best->plannable()) {
    best->memory = other.memory;
    best->reserve = other.reserve;
  }
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

/// Throws Error if the file of heterogeneous nodes lacks what they need, or has what they cannot
/// have.
void expect_devices_and_links(const Cluster& cluster, const NodeGroup& nodes,
                              const Cluster& other) {
  if (other.this_machine || other.cores_per_node > 0 || cluster.cores_per_node > 0) {
    fail(cluster.name,
         "heterogeneous_nodes names {}, and ranks share cores there or here; try "
         "heterogeneous_nodes.speed",
         nodes.cluster);
  }
  if (!other.heterogeneous_nodes.empty()) {
    fail(cluster.name,
         "heterogeneous_nodes names {}, which has heterogeneous_nodes, too; expected a file with "
         "one kind of nodes",
         nodes.cluster);
  }
  const auto expect_link = [&](bool is_used, const char* name, const Link& link) {
    if (is_used && (link.bandwidth.value <= 0 || link.latency.value <= 0)) {
      fail(cluster.name,
           "heterogeneous_nodes names {}, which lacks links.{}; expected its latency and bandwidth",
           nodes.cluster, name);
    }
  };
  expect_link(cluster.devices_per_node > 1, "intra", other.links.intra);
  expect_link(cluster.nodes > 1, "inter", other.links.inter);
}

/// Fills in the devices, links and errors of heterogeneous nodes. `folder`: base of relative file
/// names; `from`: the files being read.
void fill_in_node_groups(const std::filesystem::path& folder, const Files& from, Cluster* cluster) {
  for (NodeGroup& nodes : cluster->heterogeneous_nodes) {
    nodes.device = cluster->device;
    nodes.links = cluster->links;
    nodes.accuracy = cluster->accuracy;
    if (!nodes.cluster.empty()) {
      const Cluster other = read_cluster_file(folder / nodes.cluster, {}, from);
      expect_devices_and_links(*cluster, nodes, other);
      nodes.device = other.device;
      nodes.links = other.links;
      nodes.accuracy = other.accuracy;
    }
    scale_device(nodes.speed, &nodes.device);
    scale_link(nodes.bandwidth, &nodes.links.intra);
    scale_link(nodes.bandwidth, &nodes.links.inter);
  }
}

/// Moves the shares of products of 8-bit operands from their former keys to `of_types`.
void move_former_shares(const std::string& where, Efficiency* efficiency) {
  if (!efficiency->has_former_shares()) return;
  log_warning(
      "{}: device.efficiency.matmul_f8 and matmul_f8_by_flops are now matmul and matmul_by_flops "
      "of an entry of device.efficiency.of_types with types [f8_e4m3, f8_e5m2]; the former keys "
      "will be refused in a later version",
      where);
  TypedShares shares;
  shares.types = {"f8_e4m3", "f8_e5m2"};
  shares.matmul = std::exchange(efficiency->matmul_f8, {});
  shares.matmul_by_flops = std::exchange(efficiency->matmul_f8_by_flops, {});
  efficiency->of_types.push_back(std::move(shares));
}

/// Value of a share that a file does not give. Read values are at least 0.
constexpr double kAbsentShare = -1;

Cluster without_shares() {
  Cluster cluster;
  Efficiency& efficiency = cluster.device.efficiency;
  for (Fraction* share : {&efficiency.matmul, &efficiency.attention, &efficiency.memory}) {
    share->value = kAbsentShare;
  }
  return cluster;
}

/// Gives absent shares of a device the typical ones of the shipped datasheet files. Those that a
/// curve replaces, and those of cores, are 1.
void fill_in_shares(Cluster* cluster) {
  constexpr const char* kTypicalFile = "h100-64x8";
  Efficiency& mine = cluster->device.efficiency;
  const bool is_core = cluster->this_machine || cluster->device_is_host();
  const auto fill_in = [&](const char* key, const ShareCurve& curve, Fraction Efficiency::*share) {
    if ((mine.*share).value != kAbsentShare) return;
    if (is_core || curve.given()) {
      mine.*share = {1, ""};
      return;
    }
    static const Efficiency kTypical = known_cluster(kTypicalFile).device.efficiency;
    mine.*share = {(kTypical.*share).value,
                   fmt::format("typical of datasheet files ({}.yaml)", kTypicalFile)};
    mine.typical.emplace_back(key);
  };
  fill_in("matmul", mine.matmul_by_flops, &Efficiency::matmul);
  fill_in("attention", mine.attention_by_flops, &Efficiency::attention);
  fill_in("memory", mine.memory_by_bytes, &Efficiency::memory);
}

/// Warns of `text`, unless this process did before: verbs read a cluster file several times.
void warn_once(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  if (warned.insert(text).second) {
    log_warning("{}", text);
  }
}

Cluster read_cluster_file(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides, const Files& from) {
  const Files files = append_file(from, path);
  Cluster cluster = without_shares();
  read_config(cluster, path.string(), overrides);
  fill_in_shares(&cluster);
  cluster.validate(path.string());
  for (const std::string& far : far_from_datasheet(cluster.device)) {
    warn_once(fmt::format("{}: {}", path.string(), far));
  }
  move_former_shares(path.string(), &cluster.device.efficiency);
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
  Cluster cluster = without_shares();
  parse_config(cluster, text, name);
  fill_in_shares(&cluster);
  cluster.validate(name);
  move_former_shares(name, &cluster.device.efficiency);
  fill_in_node_groups({}, {}, &cluster);
  return cluster;
}

}  // namespace hocket::cost

// SPDX-License-Identifier: Apache-2.0
// The time of a collective by size, with the algorithm that takes it.
#include "cli/simulate_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/units.h"
#include "cost/comm_log.h"
#include "cost/cost_model.h"
#include "cost/rooted.h"
#include "engine/machine.h"

namespace hocket::cli {
namespace {

constexpr const char* kWhere = "hocket simulate --op";

const comm::Op& op_of(const std::string& name) {
  const comm::Op* found = cost::find_costed(name);
  if (!found) {
    found = cost::find_costed(cost::comm_op_of(name));
  }
  if (found) return *found;
  std::vector<std::string> names;
  for (const comm::Op* op : comm::all()) {
    if (op->algorithms) {
      names.emplace_back(op->name);
    }
  }
  for (const comm::Op& op : cost::rooted_ops()) {
    names.emplace_back(op.name);
  }
  fail(kWhere, "there is no cost of {}; expected one of {}", quote(name), join(names, ", "));
}

/// Sizes in the order in which they are given.
std::vector<double> sizes_of(const std::string& list) {
  constexpr double kMost = 0x1p50;
  const auto size = [&](std::string_view word) {
    const double bytes = parse_quantity(trim(word), Unit::bytes, std::string(kWhere) + " --bytes");
    if (!(bytes >= 1 && bytes <= kMost)) {
      fail(kWhere, "--bytes has {}; expected 1 B to 1 PiB", quote(word));
    }
    return bytes;
  };
  std::vector<double> sizes;
  for (const std::string& word : split(list, ',')) {
    const size_t dots = word.find("..");
    if (dots == std::string::npos) {
      sizes.push_back(size(word));
      continue;
    }
    const double first = size(std::string_view(word).substr(0, dots));
    const double last = size(std::string_view(word).substr(dots + 2));
    if (first > last) {
      fail(kWhere, "--bytes has {}; expected the smaller size first", quote(word));
    }
    for (double bytes = first; bytes <= last; bytes *= 2) {
      sizes.push_back(bytes);
    }
  }
  return sizes;
}

/// Ranks of the group, so many on each node from its first device on.
std::vector<int32_t> group_of(const OpOptions& options, const cost::Cluster& cluster) {
  const int64_t ranks = options.ranks.value_or(cluster.capacity());
  const int64_t per_node = options.per_node.value_or(cluster.devices_per_node);
  if (per_node > cluster.devices_per_node) {
    fail(kWhere, "--per-node is {}; expected at most the {} devices of a node of {}", per_node,
         cluster.devices_per_node, cluster.name);
  }
  const int64_t nodes = (ranks + per_node - 1) / per_node;
  if (nodes > cluster.nodes) {
    fail(kWhere, "{} ranks, {} on a node, are {}; {} has {}; try --set nodes={}", ranks, per_node,
         counted(nodes, "node"), cluster.name, cluster.nodes, nodes);
  }
  std::vector<int32_t> group;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    group.push_back(
        static_cast<int32_t>(rank / per_node * cluster.devices_per_node + rank % per_node));
  }
  return group;
}

/// The cluster file, or this machine with as many ranks as are asked for, else one a core.
cost::Cluster cluster_of(const OpOptions& options) {
  if (!options.cluster.empty()) return cost::read_cluster(options.cluster, options.set);
  if (!options.set.empty()) {
    fail(kWhere, "--set is of a cluster file; expected --cluster with it");
  }
  engine::Run run;
  run.plan.dp = options.ranks.value_or(std::max(1U, std::thread::hardware_concurrency()));
  return engine::local_cluster(run);
}

/// "12.3 MB/s": from slow links to fast ones.
std::string rate_text(double bytes_per_s) {
  const char* const units[] = {"B", "kB", "MB", "GB"};
  size_t unit = 0;
  for (; bytes_per_s >= 1000 && unit + 1 < std::size(units); ++unit) {
    bytes_per_s /= 1000;
  }
  return fmt::format("{:.2f} {}/s", bytes_per_s, units[unit]);
}

void print_json(const std::vector<double>& sizes, const std::vector<std::vector<cost::Way>>& all) {
  JsonWriter json({.indent = 1, .digits = 9});
  json.array();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const cost::Way& way = all[i].front();
    json.object().member("bytes", static_cast<int64_t>(sizes[i]));
    json.member("time_us", way.seconds() * 1e6).member("algorithm", way.algorithm);
    json.member("protocol", way.short_messages ? "short" : "long");
    json.member("start_us", way.start_s * 1e6).member("latency_us", way.latency_s * 1e6);
    json.member("data_us", way.data_s * 1e6).member("busiest", way.busiest).end();
  }
  fmt::print("{}\n", json.end().take());
}

void print_table(const std::vector<double>& sizes, const std::vector<std::vector<cost::Way>>& all,
                 bool all_ways) {
  fmt::print("{:>12} {:>12} {:>14}  {:<14} {:<8} {:<8}\n", "bytes", "time", "payload/time",
             "algorithm", "protocol", "busiest");
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (const cost::Way& way : all[i]) {
      const double seconds = way.seconds();
      fmt::print("{:>12} {:>12} {:>14}  {:<14} {:<8} {:<8}\n", human_bytes(sizes[i]),
                 human_time(seconds), seconds > 0 ? rate_text(sizes[i] / seconds) : "none",
                 way.algorithm, way.short_messages ? "short" : "long", way.busiest);
      if (!all_ways) break;
    }
  }
}

}  // namespace

int simulate_op(const OpOptions& options) {
  const comm::Op& op = op_of(options.op);
  if (options.bytes.empty()) fail(kWhere, "got no --bytes; expected sizes, such as 1MiB,4MiB");
  const std::vector<double> sizes = sizes_of(options.bytes);
  const cost::Cluster cluster = cluster_of(options);
  std::optional<cost::Profile> profile;
  if (!options.profile.empty()) {
    profile = cost::read_profile(options.profile);
  }
  const cost::CostModel costs(cluster, profile, 1);
  const std::vector<int32_t> group = group_of(options, costs.cluster());
  const cost::GroupShape shape = costs.cluster().shape(group);
  std::vector<std::vector<cost::Way>> all;
  for (const double bytes : sizes) {
    if (group.size() < 2) {
      cost::Way none;
      none.algorithm = none.busiest = "none";
      all.push_back({none});
    } else {
      all.push_back(costs.ways(op, bytes, false, shape));
    }
  }
  if (options.json) {
    print_json(sizes, all);
    return 0;
  }
  fmt::print("{} of {} on {} of {}\n", op.name, counted(static_cast<int64_t>(group.size()), "rank"),
             counted(shape.nodes, "node"), cluster.name);
  print_table(sizes, all, options.all_ways);
  return 0;
}

}  // namespace hocket::cli

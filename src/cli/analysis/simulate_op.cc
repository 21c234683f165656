// SPDX-License-Identifier: Apache-2.0
// The time of a collective by size, with the algorithm that takes it.
#include "cli/analysis/simulate_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/inputs.h"
#include "cost/cost_model.h"
#include "cost/rooted.h"
#include "interop/comm_log_reader.h"
#include "passes/compress.h"
#include "planner/codecs/sum_options.h"
#include "run/machine.h"
#include "sim/interval.h"

namespace hocket::cli {
namespace {

constexpr const char* kWhere = "hocket simulate op";
/// Largest group: the largest cluster.
constexpr int64_t kMaxGroupRanks = int64_t{1} << 24;

struct OpOptions {
  std::string op;     ///< of the registry or cost::rooted_ops(), or as nccl-tests names it
  std::string bytes;  ///< "1MiB,4MiB", "1KiB..1GiB": powers of two times the first
  std::optional<int64_t> ranks, per_node;
  std::string cluster, profile;  ///< empty: this machine, without one
  std::vector<std::string> set;  ///< keys of the cluster file
  std::string codec;             ///< of all_reduce: through it, where that is faster; empty: none
  bool all_ways = false;
  bool json = false;
};

const comm::Op& op_of(const std::string& name) {
  const comm::Op* found = cost::find_costed(name);
  if (!found) {
    found = cost::find_costed(interop::comm_op_of(name));
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
  constexpr double kMaxPayloadBytes = 0x1p50;
  const auto size = [&](std::string_view word) {
    const double bytes = parse_quantity(trim(word), Unit::bytes, std::string(kWhere) + " --bytes");
    if (!(bytes >= 1 && bytes <= kMaxPayloadBytes)) {
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

/// Returns the ranks of the group: a number of devices per node, from its first one.
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

/// Returns the cluster of the file, or this machine with the ranks asked for, by default one per
/// core.
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

/// Returns the interval of a collective of `seconds`: that of the errors of its links, or else that
/// of whole steps on the cluster. Timings of a profile have none.
sim::Interval interval_of(const cost::CostModel& costs, const cost::GroupShape& shape,
                          double seconds) {
  if (costs.calibrated()) {
    return {0, 0, "none: a profile has no error of single collectives", false};
  }
  // Collectives of nodes of several files: of all ranks, as the group may lie anywhere.
  const int64_t ranks = costs.cluster().heterogeneous_nodes.empty() ? int64_t{shape.members}
                                                                    : costs.cluster().capacity();
  return sim::interval_of_collective(costs.cluster(), shape, {std::llround(seconds * 1e9), ranks});
}

void write_interval(JsonWriter& json, const sim::Interval& interval) {
  json.key("interval").object();
  if (interval.given()) {
    json.member("low_us", static_cast<double>(interval.low_ns) / 1e3);
    json.member("high_us", static_cast<double>(interval.high_ns) / 1e3);
  }
  json.member("why", interval.why).end();
}

void print_interval(const cost::CostModel& costs, const cost::GroupShape& shape) {
  fmt::print("interval of each: {}\n", interval_of(costs, shape, 1).why);
}

void print_json(const std::vector<double>& sizes,
                const std::vector<std::vector<cost::AlgorithmTime>>& all,
                const cost::CostModel& costs, const cost::GroupShape& shape) {
  JsonWriter json({.indent = 1, .digits = 9});
  json.array();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const cost::AlgorithmTime& time = all[i].front();
    json.object().member("bytes", static_cast<int64_t>(sizes[i]));
    json.member("time_us", time.seconds() * 1e6).member("algorithm", time.algorithm);
    json.member("protocol", time.short_messages ? "short" : "long");
    json.member("start_us", time.start_s * 1e6).member("latency_us", time.latency_s * 1e6);
    json.member("data_us", time.data_s * 1e6).member("busiest", time.busiest);
    write_interval(json, interval_of(costs, shape, time.seconds()));
    json.end();
  }
  fmt::print("{}\n", json.end().take());
}

void print_table(const std::vector<double>& sizes,
                 const std::vector<std::vector<cost::AlgorithmTime>>& all, bool all_ways) {
  fmt::print("{:>12} {:>12} {:>14}  {:<14} {:<8} {:<8}\n", "bytes", "time", "payload/time",
             "algorithm", "protocol", "busiest");
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (const cost::AlgorithmTime& time : all[i]) {
      const double seconds = time.seconds();
      fmt::print("{:>12} {:>12} {:>14}  {:<14} {:<8} {:<8}\n", human_bytes(sizes[i]),
                 human_time(seconds), seconds > 0 ? rate_text(sizes[i] / seconds) : "none",
                 time.algorithm, time.short_messages ? "short" : "long", time.busiest);
      if (!all_ways) break;
    }
  }
}

/// A way to sum up a gradient, and its time.
struct TimedSum {
  const planner::SumOption* option = nullptr;
  double seconds = 0;
};

/// Returns all ways to all-reduce one size, fastest first.
std::vector<TimedSum> timed_sums(const std::vector<planner::SumOption>& all,
                                 const planner::SumCosts& costs, double bytes) {
  std::vector<TimedSum> sums;
  for (const planner::SumOption& option : all) {
    sums.push_back({&option, costs.seconds(option, bytes)});
  }
  std::stable_sort(sums.begin(), sums.end(), [](const TimedSum& left, const TimedSum& right) {
    return left.seconds < right.seconds;
  });
  return sums;
}
/// The fastest one without a codec.
const TimedSum& plain_of(const std::vector<TimedSum>& sums) {
  return *std::find_if(sums.begin(), sums.end(),
                       [](const TimedSum& sum) { return !planner::is_encoded(*sum.option); });
}

/// Returns the ways that these ranks, and the known facts of the cluster, allow.
std::vector<planner::SumOption> possible_sums(const cost::CostModel& costs,
                                              const cost::GroupShape& shape) {
  std::vector<planner::SumOption> options = planner::sum_options();
  const bool two_levels = shape.nodes > 1 && shape.per_node > 1;
  std::erase_if(options, [&](const planner::SumOption& option) {
    return (!two_levels && !planner::is_flat(option)) ||
           (!costs.cluster().knows_hosts() && planner::works_on_host(option));
  });
  return options;
}

void print_sums(const OpOptions& options, const std::vector<double>& sizes,
                const std::vector<planner::SumOption>& all, const planner::SumCosts& costs,
                const cost::CostModel& of_cluster, const cost::GroupShape& shape) {
  if (options.json) {
    JsonWriter json({.indent = 1, .digits = 9});
    json.array();
    for (const double bytes : sizes) {
      const std::vector<TimedSum> sums = timed_sums(all, costs, bytes);
      json.object().member("bytes", static_cast<int64_t>(bytes));
      json.member("time_us", sums.front().seconds * 1e6);
      json.member("plain_us", plain_of(sums).seconds * 1e6);
      json.member("way", to_string(*sums.front().option));
      json.member("plain_way", to_string(*plain_of(sums).option));
      write_interval(json, interval_of(of_cluster, shape, sums.front().seconds));
      json.end();
    }
    fmt::print("{}\n", json.end().take());
    return;
  }
  fmt::print("{:>12} {:>12} {:>12}  {}\n", "bytes", "time", "without", "way");
  for (const double bytes : sizes) {
    const std::vector<TimedSum> sums = timed_sums(all, costs, bytes);
    for (const TimedSum& sum : sums) {
      fmt::print("{:>12} {:>12} {:>12}  {}\n", human_bytes(bytes), human_time(sum.seconds),
                 human_time(plain_of(sums).seconds), to_string(*sum.option));
      if (!options.all_ways) break;
    }
  }
  print_interval(of_cluster, shape);
}

/// An all-reduce of a gradient by every way of the tree of options (planner/codecs/sum_options.h).
int simulate_sum(const OpOptions& options, const std::vector<double>& sizes,
                 const cost::CostModel& costs, const cost::GroupShape& shape) {
  const std::vector<std::string> names = passes::codec_names();
  if (options.codec == passes::kNoCodec ||
      std::find(names.begin(), names.end(), options.codec) == names.end()) {
    fail(kWhere, "--codec is {}; expected one of {}, but not none", quote(options.codec),
         join(names, ", "));
  }
  if (shape.members < 2 || shape.per_node * shape.nodes != shape.members ||
      shape.device_types != 1) {
    fail(kWhere,
         "--codec needs two ranks or more, equally many on each node, and equal nodes; "
         "got {} on {}",
         counted(shape.members, "rank"), counted(shape.nodes, "node"));
  }
  const passes::CodecOps codec(options.codec);
  const std::vector<planner::SumOption> all = possible_sums(costs, shape);
  if (!options.json) {
    fmt::print("a sum of f32 by {} of {} on {} of {}, the fastest of {} ways{}\n", options.codec,
               counted(shape.members, "rank"), counted(shape.nodes, "node"), costs.cluster().name,
               all.size(),
               costs.cluster().knows_hosts() ? "" : " (of hosts the cluster says nothing)");
  }
  print_sums(options, sizes, all, planner::SumCosts(costs, shape.nodes, shape.per_node, codec),
             costs, shape);
  return 0;
}

int simulate_op(const OpOptions& options) {
  const comm::Op& op = op_of(options.op);
  if (!options.codec.empty() && op.name != std::string_view("all_reduce")) {
    fail(kWhere, "--codec goes with all_reduce, got {}", op.name);
  }
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
  if (!options.codec.empty()) return simulate_sum(options, sizes, costs, shape);
  std::vector<std::vector<cost::AlgorithmTime>> all;
  for (const double bytes : sizes) {
    if (group.size() < 2) {
      cost::AlgorithmTime none;
      none.algorithm = none.busiest = "none";
      all.push_back({none});
    } else {
      all.push_back(costs.algorithm_times(op, bytes, false, shape));
    }
  }
  if (options.json) {
    print_json(sizes, all, costs, shape);
    return 0;
  }
  fmt::print("{} of {} on {} of {}\n", op.name, counted(static_cast<int64_t>(group.size()), "rank"),
             counted(shape.nodes, "node"), cluster.name);
  print_table(sizes, all, options.all_ways);
  print_interval(costs, shape);
  return 0;
}

}  // namespace

void declare_simulate_op(Args& args) {
  auto options = std::make_shared<OpOptions>();
  args.about("time one collective by size",
             "Prints the predicted time of a collective at several sizes on a cluster, with the "
             "fastest algorithm, in the faster of two protocols (docs/cluster-files.md).");
  args.positional("OP", &options->op,
                  "all_reduce, all_gather, reduce_scatter, all_to_all, send, broadcast, reduce, "
                  "gather, scatter, ... (docs/cluster-files.md)");
  args.option("--bytes", "SIZES", &options->bytes,
              "bytes that a rank brings or gets, whichever is more: 1MiB,4MiB or 1KiB..1GiB "
              "(doubled)");
  args.option("--ranks", "N", &options->ranks,
              "ranks of the group; default: all of the cluster, on this machine one per core", 1,
              kMaxGroupRanks);
  args.option("--per-node", "N", &options->per_node,
              "ranks of the group on each node; default: all devices", 1, kMaxGroupRanks);
  add_prediction_basis(args, &options->cluster, &options->profile, /*has_run=*/false);
  args.option("--set", "KEY=VALUE", &options->set,
              "override a key of the cluster file; may be repeated");
  args.option("--codec", "CODEC", &options->codec,
              "codec for an all_reduce of f32: print the fastest way with it or without it "
              "(docs/cluster-files.md)");
  args.flag("--all-ways", &options->all_ways,
            "list every algorithm and protocol, or way through a codec, the fastest first");
  args.flag("--json", &options->json,
            "print the times as JSON: [{\"bytes\": ..., \"time_us\": ...}, ...]");
  args.example(
      "hocket simulate op all_reduce --bytes 1MiB,64MiB,1GiB --ranks 128 --cluster "
      "configs/clusters/a100-16x8.yaml",
      "how long a collective takes, and by which algorithm");
  args.run([options] { return simulate_op(*options); });
}

}  // namespace hocket::cli

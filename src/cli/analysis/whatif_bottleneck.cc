// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis/whatif_bottleneck.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/stats.h"
#include "base/text.h"
#include "base/units.h"
#include "cost/cluster.h"
#include "cost/profile.h"
#include "ops/op.h"

namespace hocket::cli {

namespace {

using whatif::AddTimes;

std::vector<double> quantities(const std::string& text, Unit unit, const std::string& option) {
  std::vector<double> list;
  for (const std::string& word : split(text, ',')) {
    list.push_back(parse_quantity(trim(word), unit, "hocket whatif " + option));
  }
  return list;
}

/// Adding two vectors reads both and writes one.
constexpr double kMoves = 3;
constexpr double kMaxAddBytes = 1 << 30;

/// Times of additions by the memory bandwidth of the cluster's devices.
AddTimes add_times_of(const cost::Cluster& cluster) {
  constexpr double kMinAddBytes = 1024;
  const cost::Device& device = cluster.device;
  std::vector<std::pair<double, double>> rows;
  for (double bytes = kMinAddBytes; bytes <= kMaxAddBytes; bytes *= 2) {
    const double moved = kMoves * bytes;
    const double share = device.efficiency.memory_by_bytes.given()
                             ? device.efficiency.memory_by_bytes.at(moved)
                             : device.efficiency.memory.value;
    rows.push_back({bytes, device.launch.value + moved / (device.memory_bandwidth.value * share)});
  }
  return AddTimes(std::move(rows));
}

/// Sums of two vectors as they were timed, and beyond these sizes by the rate of memory.
AddTimes add_times_of(const cost::Profile& profile, const std::string& file) {
  const std::string& op = ops::of(ops::Meaning::sum).name;
  std::map<double, std::vector<double>> timed;  // seconds by bytes of an operand
  for (const cost::TimedTask& task : profile.tasks) {
    if (task.op == op && task.bytes > 0) {
      timed[static_cast<double>(task.bytes) / kMoves].push_back(static_cast<double>(task.ns) *
                                                                1e-9);
    }
  }
  std::vector<std::pair<double, double>> rows;
  for (auto& [bytes, seconds] : timed) {
    // By noise, more bytes may seem to take less time.
    const double least = rows.empty() ? 0 : rows.back().second;
    rows.push_back({bytes, std::max(least, median(seconds))});
  }
  if (profile.memory_bytes_per_s > 0) {
    const auto [bytes, seconds] = rows.empty() ? std::pair(0.0, 0.0) : rows.back();
    rows.push_back(
        {bytes + kMaxAddBytes, seconds + kMoves * kMaxAddBytes / profile.memory_bytes_per_s});
  }
  if (rows.empty()) {
    fail("hocket whatif --adds",
         "{} has timed no task {}, nor the rate of memory; expected a profile of a model of this "
         "machine, a cluster file, a rate or a table",
         file, op);
  }
  return AddTimes(std::move(rows));
}

/// A rate, a cluster file, a profile, or a table.
AddTimes add_times(const std::string& text) {
  double rate = 0;
  if (parse_quantity(text, Unit::bytes_s, &rate)) {
    if (rate > 0) return AddTimes(rate);
    fail("hocket whatif --adds", "got {}; expected a rate above 0", quote(text));
  }
  if (text.ends_with(".json")) return add_times_of(cost::read_profile(text), text);
  if (!text.ends_with(".yaml") && !text.ends_with(".yml")) return whatif::read_add_times(text);
  const cost::Cluster cluster = cost::read_cluster(text);
  if (cluster.device.memory_bandwidth.value > 0) return add_times_of(cluster);
  fail("hocket whatif --adds",
       "{} does not say device.memory_bandwidth; expected a cluster that "
       "does, a profile, a rate or a table",
       text);
}

}  // namespace

void add_bottleneck(Args& args, BottleneckWords* words) {
  args.flag("--bottleneck", &words->asked,
            "find out if the network is the bottleneck of data-parallel training: the scaling "
            "factor by ranks, bandwidth and compression, from the times at which gradients were "
            "ready; TRACE may also be a table of gradients, .yaml");
  args.option("--ranks", "N,...", &words->ranks,
              "for --bottleneck: numbers of ranks (default: 2,4,8,16,32,64)");
  args.option("--bandwidths", "RATE,...", &words->bandwidths,
              "for --bottleneck: bandwidths of a rank's link (default: "
              "1Gbit/s,10Gbit/s,25Gbit/s,100Gbit/s)");
  args.option("--ratios", "R,...", &words->ratios,
              "for --bottleneck: compression ratios of gradients (default: 1,2,5,10)");
  args.option(
      "--used", "SHARE", &words->used,
      "for --bottleneck: predict also with this share of the bandwidth reached (default: 1)");
  args.option("--fusion", "BYTES", &words->fusion,
              "for --bottleneck: size of a batch of gradients (default: 64MB)");
  args.option(
      "--fusion-timeout", "TIME", &words->timeout,
      "for --bottleneck: time from a batch's first gradient until it is sent (default: 5ms)");
  args.option(
      "--adds", "RATE|FILE", &words->adds,
      "for --bottleneck: rate at which ranks add: bytes per second of one operand, a cluster file, "
      "a profile (.json), or a table of bytes and times (default: adding takes no time)");
}

whatif::BottleneckOptions bottleneck_options(const BottleneckWords& words) {
  whatif::BottleneckOptions options;
  for (const auto& [text, option] :
       {std::pair(&words.ranks, "--ranks"), std::pair(&words.bandwidths, "--bandwidths"),
        std::pair(&words.ratios, "--ratios"), std::pair(&words.used, "--used"),
        std::pair(&words.fusion, "--fusion"), std::pair(&words.timeout, "--fusion-timeout"),
        std::pair(&words.adds, "--adds")}) {
    if (!text->empty() && !words.asked) {
      fail("hocket whatif", "got {} without --bottleneck; expected both or none", option);
    }
  }
  if (!words.ranks.empty()) {
    options.ranks.clear();
    for (const std::string& word : split(words.ranks, ',')) {
      int64_t ranks = 0;
      if (!parse_int(trim(word), &ranks) || ranks < 2 || ranks > 1 << 24) {
        fail("hocket whatif --ranks", "got {}; expected numbers from 2 on, such as 2,8,64",
             quote(word));
      }
      options.ranks.push_back(ranks);
    }
  }
  if (!words.bandwidths.empty()) {
    options.bandwidths = quantities(words.bandwidths, Unit::bytes_s, "--bandwidths");
  }
  if (!words.ratios.empty()) {
    options.ratios = quantities(words.ratios, Unit::none, "--ratios");
  }
  if (!words.used.empty()) {
    options.used = parse_quantity(words.used, Unit::none, "hocket whatif --used");
  }
  if (!words.fusion.empty()) {
    options.fusion.bytes = parse_quantity(words.fusion, Unit::bytes, "hocket whatif --fusion");
  }
  if (!words.timeout.empty()) {
    options.fusion.timeout =
        parse_quantity(words.timeout, Unit::seconds, "hocket whatif --fusion-timeout");
  }
  if (!words.adds.empty()) {
    options.add = add_times(words.adds);
  }
  return options;
}

}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
// A profile: what `hocket profile` measured on one machine. Tasks are identified by the text of
// their kind, so that a profile serves every program that contains the same tasks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cost/cluster.h"
#include "program/program.h"

namespace hocket::cost {

using program::Kind;

/// `linear_dw{...} acc=1 (f32[64,8], f32[64,16]) -> (f32[8,16])`: what identifies a task's
/// duration. A communication is followed by how its group lies: ` n=4 nodes=1`.
std::string kind_key(const Kind& kind, uint32_t accumulate);
std::string kind_key(const Kind& kind, uint32_t accumulate, const GroupShape& shape);

/// Longest time of one task that is believed, in a profile or computed: 11 days. Sums of many stay
/// within 64 bits.
inline constexpr int64_t kMaxTaskNs = 1'000'000'000'000'000;

struct TimedTask {
  std::string key;  ///< kind_key
  std::string op;
  std::string dtype;  ///< of the first floating-point operand
  double flops = 0;
  int64_t bytes = 0;
  int64_t ns = 0;     ///< median, in isolation; of routed rows: as if experts got as many each
  double spread = 0;  ///< (75th - 25th percentile) / median
  bool operator==(const TimedTask&) const = default;
};

/// Fitted to transfers between ranks of this machine (comm/link_times.h).
struct TimedLink {
  double latency_ns = 0;
  double bytes_per_s = 0;
  /// Of collectives; 0: as messages.
  double collective_latency_ns = 0;
  double collective_bytes_per_s = 0;
  /// How many times as long tasks take beside collectives, and these beside tasks.
  double work_beside = 1, collective_beside = 1;
  bool operator==(const TimedLink&) const = default;
};

struct Profile {
  /// What the tasks were timed on: "cpu", or the name of another device. A cluster that computes on
  /// something else has no use for the profile (mismatch()).
  std::string device = "cpu";
  std::map<std::string, std::string> machine;  ///< facts for people: cpu, backend, kernel
  int64_t cores = 0;                           ///< of the machine
  int64_t threads = 1;                         ///< per rank while timing
  int64_t task_overhead_ns = 0;                ///< what the executor adds to every task
  double probe_flops = 0;                      ///< runtime::Probe while timing; 0: not measured
  double memory_bytes_per_s = 0;               ///< of one rank with its threads; 0: not measured
  std::map<std::string, double> peak_flops;    ///< by dtype: rate of large products of one rank
  std::map<std::string, TimedLink> links;      ///< "intra", "inter"
  /// Rows that a router gave to each expert, of every layer that has one. Empty: as many to each.
  std::vector<std::vector<int64_t>> routing;
  std::vector<TimedTask> tasks;
};

/// Reads JSON written by `to_json`; Error (exit code 2) for anything that does not fit.
Profile read_profile(const std::string& path);
Profile parse_profile(std::string_view text, const std::string& where);
std::string to_json(const Profile& profile);

/// How many times as many rows the busiest of the ranks gets as all do on average that have
/// `experts` neighbouring experts each: the mean over layers. 1 where nothing is known.
double busiest(const Profile& profile, int64_t experts);
/// The same of the types of a kind: of the ranks that have as few experts as any of them.
double busiest(const Profile& profile, const Kind& kind);

/// The profile of devices and links that are so many times as fast.
Profile scaled(Profile profile, double speed, double bandwidth);

/// Why a profile says nothing about a cluster's devices, as a clause: "times a cpu (...), and ...";
/// empty if it does. Ranks that are threads compute on a "cpu", others on the device that the
/// cluster names. Which CPU matters to engine::mismatch, where the cluster is this machine.
std::string mismatch(const Profile& profile, const Cluster& cluster);

/// A task that has to be timed for a program: one of each kind (and accumulation), how often a step
/// of one rank of the class that has most of them runs it, and where an example is.
struct ProfileTarget {
  std::string key;
  program::KindId kind = 0;
  uint32_t accumulate = 0;
  int64_t count = 0;
  int32_t cls = 0;
  program::TaskId task = 0;  ///< the first one
};

/// The distinct local tasks (no communication) of a program, in order of first appearance.
std::vector<ProfileTarget> distinct_tasks(const program::Program& program);

}  // namespace hocket::cost

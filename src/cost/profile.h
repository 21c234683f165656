// SPDX-License-Identifier: Apache-2.0
// Profile: measurements of `hocket profile` on one machine. Tasks are identified by the text of
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

/// Returns the key that identifies a task's duration: `linear_dw{...} acc=1 (f32[64,8], f32[64,16])
/// -> (f32[8,16])`. That of a communication ends with the placement of its group: ` n=4 nodes=1`.
std::string kind_key(const Kind& kind, uint32_t accumulate);
std::string kind_key(const Kind& kind, uint32_t accumulate, const GroupShape& shape);

/// Longest plausible time of one task, in a profile or computed: 11 days. Sums of many such tasks
/// fit into 64 bits.
inline constexpr int64_t kMaxTaskNs = 1'000'000'000'000'000;

struct TimedTask {
  std::string key;  ///< kind_key
  std::string op;
  std::string dtype;  ///< of the first floating-point operand
  double flops = 0;
  int64_t bytes = 0;
  int64_t ns = 0;     ///< median, in isolation; of routed rows: with balanced routing
  double spread = 0;  ///< (75th - 25th percentile) / median
  bool operator==(const TimedTask&) const = default;
};

/// Constants fitted to transfers between ranks of this machine (comm/link_times.h).
struct TimedLink {
  double latency_ns = 0;
  double bytes_per_s = 0;
  /// Collectives; 0: as messages.
  double collective_latency_ns = 0;
  double collective_bytes_per_s = 0;
  /// Slowdown factors of tasks that overlap with collectives, and of collectives that overlap with
  /// tasks.
  double compute_slowdown = 1, collective_slowdown = 1;
  bool operator==(const TimedLink&) const = default;
};

struct Profile {
  /// Device on which the tasks were timed: "cpu", or the name of another device. The profile does
  /// not apply to clusters of other devices (mismatch()).
  std::string device = "cpu";
  std::map<std::string, std::string> machine;  ///< facts for people: cpu, backend, kernel
  int64_t cores = 0;                           ///< of the machine
  int64_t threads = 1;                         ///< per rank while timing
  int64_t task_overhead_ns = 0;                ///< overhead of the executor per task
  double probe_flops = 0;                      ///< runtime::Probe while timing; 0: not measured
  double memory_bytes_per_s = 0;               ///< of one rank with its threads; 0: not measured
  std::map<std::string, double> peak_flops;    ///< by dtype: rate of large products of one rank
  std::map<std::string, TimedLink> links;      ///< "intra", "inter"
  /// Rows that the router gave to each expert, per MoE layer. Empty: balanced.
  std::vector<std::vector<int64_t>> routing;
  std::vector<TimedTask> tasks;
};

/// Reads JSON written by `to_json`. Throws Error (exit code 2) for anything that does not fit.
Profile read_profile(const std::string& path);
Profile parse_profile(std::string_view text, const std::string& where);
std::string to_json(const Profile& profile);

/// Returns the ratio of the busiest rank's rows to the mean over ranks with `experts` neighbouring
/// experts each, averaged over layers. 1 if the routing is unknown.
double busiest(const Profile& profile, int64_t experts);
/// Returns the same for the types of a kind: for ranks with as few experts as any of them.
double busiest(const Profile& profile, const Kind& kind);

/// Returns the profile of devices and links that are faster by these factors.
Profile scaled(Profile profile, double speed, double bandwidth);

/// Returns the reason why a profile does not apply to a cluster's devices, as a clause: "was timed
/// on a cpu (...), but ..."; empty if it does. Ranks that are threads compute on a "cpu", others on
/// the device that the cluster names. engine::mismatch compares the CPU, if the cluster is this
/// machine.
std::string mismatch(const Profile& profile, const Cluster& cluster);

/// A task to time for a program: one per kind (and accumulation), its count per step in the class
/// that has most of them, and the place of an example.
struct ProfileTarget {
  std::string key;
  program::KindId kind = 0;
  uint32_t accumulate = 0;
  int64_t count = 0;
  int32_t cls = 0;
  program::TaskId task = 0;  ///< first example
};

/// Returns the distinct local tasks (no communication) of a program, in order of first appearance.
std::vector<ProfileTarget> distinct_tasks(const program::Program& program);

}  // namespace hocket::cost

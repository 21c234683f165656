// SPDX-License-Identifier: Apache-2.0
// Duration of a task: from a profile where it was timed, interpolated from other sizes of the same
// op where it was not, and otherwise from a roofline over the cluster's constants. Communication:
// α-β per step of the algorithm. docs/simulate.md has the formulas.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/implementation.h"
#include "cost/cluster.h"
#include "cost/collective.h"
#include "cost/learned.h"
#include "cost/network.h"
#include "cost/profile.h"
#include "program/memory.h"
#include "program/program.h"

namespace hocket::cost {

enum class Provenance : uint8_t {
  timed,         ///< this exact task, in isolation, on this machine
  interpolated,  ///< another size of the op, or a fitted link
  learned,       ///< from timed tasks of other ops (cost/learned.h)
  analytic,      ///< constants of the cluster file
};
const char* to_string(Provenance provenance);

struct TaskCost {
  int64_t ns = 0;
  Provenance provenance = Provenance::analytic;
  /// Expected relative error, from measurements. A timed task: the spread of its timings. An
  /// interpolated one: the leave-one-out error over the timed sizes of its op. A learned one: the
  /// error of predicting tasks from those of all other ops. Negative: unknown.
  double error = -1;
};

/// Load of a transfer that has its links for itself.
struct LinkLoad {
  /// Fraction of its time in which bytes are in flight. The rest, before it, is latency, which
  /// other transfers do not prolong.
  double data = 0;
  /// Fraction, at most 1, of the capacity of a link in each block of the network that the bytes
  /// take.
  std::array<double, kLinkBlocks> share = {};
};

/// Returns the kernels that the devices of a cluster run: the CPU's where the device is the host
/// itself. Other devices have kernels of their own for every type with a peak.
program::Kernels kernels_of(const Cluster& cluster);

class CostModel {
 public:
  /// Creates a model. `threads`: per rank; matters only where ranks share cores. A profile replaces
  /// the cluster's number of cores and its links, and adds the executor's overhead per task.
  /// `collectives`: their implementation, where ranks are processes. Hocket's own send from every
  /// member to every other one, in one round per phase of the op; otherwise the fastest of the op's
  /// algorithms is assumed. Throws Error if the profile is of another device than the cluster's.
  CostModel(Cluster cluster, std::optional<Profile> profile, int64_t threads,
            std::optional<comm::Collectives> collectives = std::nullopt);

  /// Returns the cost of a task without communication, alone on its device, on a node of this type.
  /// In a lane of the host, or of copies to or from it, the task runs on the host. Rows routed to
  /// experts, here and below: those of the busiest rank in the profile, without a profile the mean.
  /// Throws Error if a task runs on the host and the cluster does not give the speed of hosts.
  TaskCost work(const Kind& kind, uint32_t accumulate, size_t device_type = 0,
                program::Lane lane = program::Lane::compute) const;
  /// Returns the memory in bytes that other trainers take for the logits of a task, beyond that of
  /// its operands here (Framework::logits).
  double logits_bytes(const Kind& kind) const;
  /// Returns the host's time to launch the kernels of a task beyond the first.
  int64_t more_launches_ns(const Kind& kind) const;
  /// Returns whether the host reads the result of such a task (Device::host_reads).
  bool host_reads(const Kind& kind) const;
  /// Returns the cost of a collective from the arrival of its last member, or of a send. `inter`:
  /// its lane is the network's. On nodes of several device types, the one on which it takes longest
  /// decides.
  TaskCost transfer(const Kind& kind, uint32_t accumulate, bool inter,
                    const GroupShape& shape) const;

  /// Returns the load on links of a transfer whose time is given by transfer().
  LinkLoad load(const Kind& kind, bool inter, const GroupShape& shape) const;

  /// Returns the forms of a collective or send of `payload` bytes among more than one rank, the
  /// fastest first, from which transfer() takes its time. `inter` as above. Accepts ops of
  /// rooted_ops().
  std::vector<AlgorithmTime> algorithm_times(const comm::Op& op, double payload, bool inter,
                                             const GroupShape& shape) const;

  const Cluster& cluster() const { return cluster_; }
  bool calibrated() const { return profile_.has_value(); }
  const std::optional<Profile>& profile() const { return profile_; }
  int64_t threads() const { return threads_; }
  /// Returns the model learned from the profile's tasks for other ops; null without a profile.
  const LearnedTimes* learned() const { return learned_ ? &*learned_ : nullptr; }

  /// Returns the seconds by the roofline, without launch: max(flops / achieved peak, bytes /
  /// achieved bandwidth).
  double roofline_s(std::string_view op, graph::DType dtype, double flops, int64_t bytes) const;
  /// Returns the smallest fraction of its roofline that a kernel of the profile takes, a lower
  /// bound for all kernels. At most 1; 1 without a profile.
  double fastest_share() const { return fastest_share_; }

  /// Returns the model of nodes of one device type alone.
  const CostModel& of_device_type(size_t type) const {
    return type == 0 ? *this : others_[type - 1];
  }
  /// Returns a model of homogeneous nodes that gives lower bounds on any device type: its
  /// rooflines times fastest_share() for kernels, its links for transfers. It has no times of tasks
  /// from a profile, which hold for one type only.
  CostModel at_best() const;

 private:
  struct Point {
    double roofline_s;
    double ns;
  };
  TaskCost balanced_work(const Kind& kind, uint32_t accumulate) const;
  TaskCost host_work(const Kind& kind, program::Lane lane) const;
  double payload(const Kind& kind) const;
  /// Returns the bytes that a kernel moves beside the operands that its kind counts.
  double accumulated_bytes(const Kind& kind, uint32_t accumulate) const;
  /// Returns the time for scales and layouts of 8-bit operands (Device::float8).
  double float8_s(const Kind& kind) const;
  /// Returns the kernels of an op for which the library has no single one; null if it has.
  const UnfusedOps* unfused(std::string_view op) const;
  double memory_s(double bytes) const;
  /// Returns the number of the file's devices that a rank computes on: its threads, if the device
  /// is one core.
  double scale() const;
  double scaled_ns(const std::vector<Point>& points, double roofline_s) const;
  std::vector<comm::Algorithm> algorithms(const comm::Op& op, double members, double payload) const;
  void replace_links();
  void replace_device();
  void learn_from_tasks();
  void measure_interpolation_error();

  Cluster cluster_;
  std::optional<Profile> profile_;
  int64_t threads_;
  std::optional<comm::Collectives> collectives_;
  std::unordered_map<std::string, TaskCost> timed_;    // by kind_key
  using OpType = std::pair<std::string, std::string>;  // op, dtype
  std::map<OpType, std::vector<Point>> points_;
  std::optional<LearnedTimes> learned_;
  double fastest_share_ = 1;
  std::vector<CostModel> others_;                 // device types from 1
  std::map<OpType, double> interpolation_error_;  // error of interpolation; absent: too few sizes
};

}  // namespace hocket::cost

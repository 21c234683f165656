// SPDX-License-Identifier: Apache-2.0
// How long a task takes: from a profile where it was timed, scaled from other sizes of the same op
// where it was not, and otherwise from a roofline over the cluster's constants. Communication: α-β
// per step of the algorithm. docs/simulate.md has the formulas.
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
#include "program/program.h"

namespace hocket::cost {

enum class Provenance : uint8_t {
  timed,         ///< this very task, in isolation, on this machine
  interpolated,  ///< another size of the op, or a fitted link
  learned,       ///< from timed tasks of other ops (cost/learned.h)
  analytic,      ///< constants of the cluster file
};
const char* to_string(Provenance provenance);

struct TaskCost {
  int64_t ns = 0;
  Provenance provenance = Provenance::analytic;
  /// Relative error to expect, from what was measured: of a timed task the spread of its timings,
  /// of an interpolated one the error with which its op's timed sizes are predicted from the others
  /// (leave one out), of a learned one that with which tasks are from those of all other ops.
  /// Negative: nothing to judge by.
  double error = -1;
};

/// How a transfer that has its links for itself takes them.
struct LinkLoad {
  /// Share of its time in which bytes pass; the rest, before it, is latency, which no other
  /// transfer makes longer.
  double data = 0;
  /// What it then takes of all that a link of each block of the network can carry, at most 1.
  std::array<double, kLinkBlocks> share = {};
};

class CostModel {
 public:
  /// `threads`: per rank; matters only where ranks share cores. A profile replaces the cluster's
  /// number of cores and its links, and adds the executor's overhead per task. `collectives`:
  /// whose, where ranks are processes; their own go from every member to every other, in as many
  /// rounds as the op has phases, and otherwise by the fastest of the op's algorithms. Error: a
  /// profile of another device than the cluster's.
  CostModel(Cluster cluster, std::optional<Profile> profile, int64_t threads,
            std::optional<comm::Collectives> collectives = std::nullopt);

  /// A task that involves no other rank, alone on its device, which is on a node of that kind, or
  /// on its host if the lane is the host's or that of copies to and from it. Of rows that routers
  /// send to experts, here and below: as many as the busiest rank gets by the profile, or the mean
  /// without one. Error: the cluster does not say how fast hosts are.
  TaskCost work(const Kind& kind, uint32_t accumulate, size_t node_kind = 0,
                program::Lane lane = program::Lane::compute) const;
  /// How long the host takes to launch the kernels of a task beyond the first.
  int64_t more_launches_ns(const Kind& kind) const;
  /// Does the host read what such a task computed (Device::host_reads)?
  bool host_reads(const Kind& kind) const;
  /// A collective from the arrival of the last member, or a send. `inter`: its lane is the
  /// network's. Of nodes of several kinds those decide on which it takes longest.
  TaskCost transfer(const Kind& kind, uint32_t accumulate, bool inter,
                    const GroupShape& shape) const;

  /// Of what transfer() gives the time of.
  LinkLoad load(const Kind& kind, bool inter, const GroupShape& shape) const;

  /// How a collective or a send of `payload` bytes may be done among more than one rank, the
  /// fastest first: what transfer() takes its time from. `inter` as there. Or an op of
  /// rooted_ops().
  std::vector<Way> ways(const comm::Op& op, double payload, bool inter,
                        const GroupShape& shape) const;

  const Cluster& cluster() const { return cluster_; }
  bool calibrated() const { return profile_.has_value(); }
  const std::optional<Profile>& profile() const { return profile_; }
  int64_t threads() const { return threads_; }
  /// What the profile's tasks say of ops that it has not; null without a profile.
  const LearnedTimes* learned() const { return learned_ ? &*learned_ : nullptr; }

  /// Seconds by the roofline, without launch: max(flops / reached peak, bytes / reached bandwidth).
  double roofline_s(std::string_view op, graph::DType dtype, double flops, int64_t bytes) const;
  /// The least share of its roofline that a kernel takes by the profile: no kernel is faster. 1
  /// without a profile, and where none is.
  double fastest_share() const { return fastest_share_; }

  /// The model of nodes of one kind alone.
  const CostModel& of_kind(size_t kind) const { return kind == 0 ? *this : others_[kind - 1]; }
  /// Of even nodes: by their rooflines no kernel takes less than its fastest_share() of what it
  /// takes here on any kind of nodes, and by their links no transfer. Without the times of tasks
  /// that a profile has, which are of one kind.
  CostModel at_best() const;

 private:
  struct Point {
    double roofline_s;
    double ns;
  };
  TaskCost even_work(const Kind& kind, uint32_t accumulate) const;
  TaskCost host_work(const Kind& kind, program::Lane lane) const;
  double payload(const Kind& kind) const;
  /// What a kernel moves beside the operands that its kind counts.
  double more_bytes(const Kind& kind, uint32_t accumulate) const;
  /// Time for scales and layouts of 8-bit operands (Device::float8).
  double float8_s(const Kind& kind) const;
  /// How the library does an op that it has no kernel for; null: in one.
  const SeveralKernels* several(std::string_view op) const;
  double memory_s(double bytes) const;
  /// Devices of the file that a rank computes on: its threads where it describes one core.
  double scale() const;
  double scaled_ns(const std::vector<Point>& points, double roofline_s) const;
  std::vector<comm::Algorithm> algorithms(const comm::Op& op, double members, double payload) const;
  void replace_links();
  void replace_device();
  void learn_from_tasks();
  void hold_out();

  Cluster cluster_;
  std::optional<Profile> profile_;
  int64_t threads_;
  std::optional<comm::Collectives> collectives_;
  std::unordered_map<std::string, TaskCost> timed_;    // by kind_key
  using OpType = std::pair<std::string, std::string>;  // op, dtype
  std::map<OpType, std::vector<Point>> points_;
  std::optional<LearnedTimes> learned_;
  double fastest_share_ = 1;
  std::vector<CostModel> others_;      // of the kinds of nodes from 1
  std::map<OpType, double> held_out_;  // error of interpolation; absent: too few sizes
};

}  // namespace hocket::cost

// SPDX-License-Identifier: Apache-2.0
// What a replay asks of whoever knows how long things take: the time of a task alone, and, where
// transfers share links, which links a transfer passes and what it takes of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "cost/network.h"
#include "program/program.h"

namespace hocket::sim {

using program::ClassId;
using program::GroupId;
using program::Program;
using program::TaskId;

/// A transfer that has its links for itself: first nothing but latency, then bytes.
struct Demand {
  int64_t latency_ns = 0;
  int64_t data_ns = 0;
  /// At the link that it fills most: the rate that transfers compete by.
  double bytes_per_s = 0;
  /// Of a link of each block of the network, while bytes pass: share of what it can carry.
  std::array<double, cost::kLinkBlocks> share = {};
};

/// Where durations come from. The engine asks once per (class, task) or (class, task, shape) and
/// keeps the answer.
class Durations {
 public:
  virtual ~Durations() = default;
  /// Nanoseconds of a task that involves no other rank, alone on its resources.
  virtual int64_t work_ns(ClassId cls, TaskId task) = 0;
  /// What kind of device a rank has: 0 is that of work_ns.
  virtual size_t device_of([[maybe_unused]] int32_t rank) const { return 0; }
  /// work_ns on a device of another kind.
  virtual int64_t work_ns_on([[maybe_unused]] size_t device, ClassId cls, TaskId task) {
    return work_ns(cls, task);
  }
  /// How long the host takes, beyond ReplayOptions::launch_ns, to launch a task of several kernels.
  virtual int64_t more_launches_ns([[maybe_unused]] ClassId cls, [[maybe_unused]] TaskId task) {
    return 0;
  }
  /// Does the host wait for what a task computed before it launches more?
  virtual bool host_reads([[maybe_unused]] ClassId cls, [[maybe_unused]] TaskId task) {
    return false;
  }
  /// A small dense id (0, 1, ...) of what matters about these ranks to a transfer's duration: their
  /// number and how they lie on nodes. For a send: {sender, receiver}.
  virtual int32_t shape_of(std::span<const int32_t> ranks) = 0;
  /// Nanoseconds from the moment when all members have arrived (collective) or from the start
  /// (send), with all links to itself.
  virtual int64_t transfer_ns(ClassId cls, TaskId task, int32_t shape) = 0;

  /// The network whose links transfers share; null: every transfer has links of its own.
  virtual const cost::Network* network() const { return nullptr; }
  /// What a transfer asks of links; its times add up to transfer_ns. Must stay. Asked only if there
  /// is a network.
  virtual const Demand& demand(ClassId cls, TaskId task, int32_t shape) {
    HOCKET_CHECK(false, "no demand of task {} in class {} on shape {}", task, cls, shape);
  }
};

}  // namespace hocket::sim

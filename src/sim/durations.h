// SPDX-License-Identifier: Apache-2.0
// Interface through which a replay obtains durations: the time of a task alone and, where transfers
// share links, the links of a transfer and its share of each.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "cost/network.h"
#include "program/program.h"
#include "sim/ids.h"

namespace hocket::sim {

using program::ClassId;
using program::GroupId;
using program::Program;
using program::TaskId;

/// Demand of a transfer that has its links for itself: a latency, then bytes.
struct Demand {
  int64_t latency_ns = 0;
  int64_t data_ns = 0;
  /// Transfer rate at the link that the transfer loads most; max-min fairness compares these rates.
  double bytes_per_s = 0;
  /// Share of the capacity of one link in each block of the network, while bytes are in flight.
  std::array<double, cost::kLinkBlocks> share = {};
};

/// Source of durations. The engine asks once per (class, task) or (class, task, shape) and caches
/// the answer.
class Durations {
 public:
  virtual ~Durations() = default;
  /// Returns the nanoseconds of a task without communication, alone on its resources.
  virtual int64_t work_ns(ClassId cls, TaskId task) = 0;
  /// Returns the device type of a rank; work_ns is for type 0.
  virtual size_t device_of([[maybe_unused]] int32_t rank) const { return 0; }
  /// Returns work_ns on the given device type.
  virtual int64_t work_ns_on([[maybe_unused]] size_t device, ClassId cls, TaskId task) {
    return work_ns(cls, task);
  }
  /// Returns the nanoseconds beyond ReplayOptions::launch_ns that the host needs to launch a task
  /// of several kernels.
  virtual int64_t more_launches_ns([[maybe_unused]] ClassId cls, [[maybe_unused]] TaskId task) {
    return 0;
  }
  /// Returns whether the host waits for the task's result before it launches more.
  virtual bool host_reads([[maybe_unused]] ClassId cls, [[maybe_unused]] TaskId task) {
    return false;
  }
  /// Returns a dense id (0, 1, ...) of the shape of `ranks`: everything that a transfer's
  /// duration depends on, namely their number and their placement on nodes. For a send: {sender,
  /// receiver}.
  virtual ShapeId shape_of(std::span<const int32_t> ranks) = 0;
  /// Returns the nanoseconds of a transfer that has all links to itself. It starts when all members
  /// have arrived (collective) or when the send starts.
  virtual int64_t transfer_ns(ClassId cls, TaskId task, ShapeId shape) = 0;

  /// Returns the network with links that transfers share; null if every transfer has its own links.
  virtual const cost::Network* network() const { return nullptr; }
  /// Returns a transfer's demand on links; its times add up to transfer_ns. The reference must stay
  /// valid. Called only if there is a network.
  virtual const Demand& demand(ClassId cls, TaskId task, ShapeId shape) {
    HOCKET_CHECK(false, "no demand of task {} in class {} on shape {}", task, cls, shape);
  }
};

}  // namespace hocket::sim

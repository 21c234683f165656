// SPDX-License-Identifier: Apache-2.0
// Replays a measured run with other durations, all lanes at once: an op starts when the last of
// what it waits for has ended; a communication ends its own transfer after the last start of its
// group. Nothing waits for a host: launch delays are left out, as in the published method.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/whatif/measured_run.h"

namespace hocket::sim::whatif {

/// The order of a run's ops, found once. The run must outlive it and keep its ops, groups and
/// waits.
class Replayer {
 public:
  /// Error: ops wait for each other in a circle.
  explicit Replayer(const MeasuredRun& run);

  /// Seconds of every step: from 0, when what waits for nothing starts, to the last end.
  /// `duration` as MeasuredRun::duration.
  std::vector<double> replay(std::span<const double> duration);
  /// Mean over the steps of replay().
  double mean(std::span<const double> duration);
  /// Of the last replay, as MeasuredRun::duration.
  const std::vector<double>& ends() const { return end_; }

 private:
  struct Unit {
    int32_t first = 0, count = 0;  ///< of members_
    bool across_replicas = false;
  };
  const MeasuredRun& run_;
  std::vector<Unit> units_;         ///< in an order in which they can run
  std::vector<int32_t> members_;    ///< ops of the units
  std::vector<int32_t> wait_;       ///< what ops wait for, of all ops
  std::vector<int32_t> wait_from_;  ///< by op: where its own begin in wait_; one more at the end
  std::vector<double> end_, barrier_;
};

}  // namespace hocket::sim::whatif

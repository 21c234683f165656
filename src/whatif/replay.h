// SPDX-License-Identifier: Apache-2.0
// Replays a measured run with other durations, many lanes at once: an op starts when the last of
// what it waits for has ended; a communication ends its own transfer after the last start of its
// group. Nothing waits for a host: launch delays are left out, as in the published method.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "whatif/blend.h"
#include "whatif/measured_run.h"

namespace hocket::whatif {

/// The order of a run's ops, found once. The run must outlive it and keep its ops, groups and
/// waits.
class Replayer {
 public:
  /// Error: ops wait for each other in a circle.
  explicit Replayer(const MeasuredRun& run);

  /// Seconds of every step: from 0, when what waits for nothing starts, to the last end.
  /// `duration` as MeasuredRun::duration.
  std::vector<double> replay(std::span<const double> duration);
  std::vector<double> replay(const Blend& durations);
  /// Mean over the steps of replay().
  double mean(std::span<const double> duration);
  double mean(const Blend& durations);
  /// When every op ends, seconds from the start of its step, as MeasuredRun::duration.
  std::vector<double> ends(std::span<const double> duration);

 private:
  struct Range {
    size_t first = 0, count = 0;
  };
  /// Ops that begin together.
  struct Unit {
    bool across_replicas = false;
    bool from_zero = false;  ///< a member waits for nothing, and starts with the step
    Range members, waits;
  };
  static Range append(const std::vector<int32_t>& some, std::vector<int32_t>* all);
  /// The steps that are replayed now: as many as have ends that fit into a cache.
  struct Tile {
    size_t first = 0, count = 0;
  };
  void replay(const Blend& durations, Tile tile);
  /// Fills begin_ with when the last of what a unit waits for ended. That may be before 0, where
  /// the step starts: transfers can take negative time (Early::kept).
  void begin(const Unit& unit, size_t lanes);
  /// Sets which replicas are replayed: of those that are alike one is enough.
  void choose_replicas(const Blend& durations);
  /// How long an op takes in the lanes of the tile.
  const double* durations_of(size_t op, const Blend& durations, Tile tile);

  const MeasuredRun& run_;
  std::vector<Unit> units_;               ///< in an order in which they can run
  std::vector<int32_t> members_, waits_;  ///< of the units: ops
  std::vector<size_t> replicas_;          ///< that are replayed
  /// A lane of a tile is a step of one of replicas_.
  size_t stride_ = 0;                 ///< most lanes, rounded up to what is looked at together
  std::vector<double> end_;           ///< [op * stride_ + lane of the tile]
  std::vector<double> begin_, last_;  ///< by lane of the tile: of a unit; the last end of all
  std::vector<double> row_;           ///< durations_of an op where they do not lie side by side
};

}  // namespace hocket::whatif

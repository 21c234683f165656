// SPDX-License-Identifier: Apache-2.0
// Replays a measured run with other durations, many samples at once. An op starts when its last
// dependency has ended. A communication ends its own transfer time after the last start of its
// group. Nothing waits for a host: launch delays are left out, as in the published method. Where
// steps overlap (MeasuredRun::waits_for_last), each continues from the op ends of the step before.
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
  /// Throws Error if ops depend on each other in a cycle.
  explicit Replayer(const MeasuredRun& run);

  /// Returns the seconds of every step: from 0, when ops without dependencies start, to the last
  /// end. Where steps overlap, counts from the last end of the step before. `duration` is laid out
  /// as MeasuredRun::duration.
  std::vector<double> replay(std::span<const double> duration);
  std::vector<double> replay(const Blend& durations);
  /// Returns the mean over the steps of replay() that count.
  double mean(std::span<const double> duration);
  double mean(const Blend& durations);
  /// Returns the end of every op in seconds from the start of its step, laid out as
  /// MeasuredRun::duration. Negative where steps overlap, for work done while the step before still
  /// runs.
  std::vector<double> ends(std::span<const double> duration);

 private:
  struct Range {
    size_t first = 0, count = 0;
  };
  /// Ops that begin together.
  struct Unit {
    bool across_replicas = false;
    bool from_zero = false;   ///< a member waits for nothing of the step, and starts with it
    bool from_begin = false;  ///< nor for anything of the step before
    Range members, waits;
    Range waits_for_last;  ///< of waits_: ops of the step before
  };
  static Range append(const std::vector<OpId>& some, std::vector<OpId>* all);
  /// Steps replayed together: their ends fit into a cache.
  struct Tile {
    size_t first = 0, count = 0;
  };
  void replay(const Blend& durations, Tile tile);
  /// Returns the number of steps replayed at once; overlapping steps go one by one.
  size_t steps_at_once() const;
  /// Fills begin_ with the end of a unit's last dependency. That may be before 0, the start of the
  /// step: transfers can take negative time (Early::kept).
  void begin(const Unit& unit, size_t samples);
  /// Returns the earliest begin of a unit that continues no step before.
  double first_begin(const Unit& unit) const;
  /// Chooses the replicas to replay: one of each set of equal replicas.
  void choose_replicas(const Blend& durations);
  /// Returns an op's durations in the samples of the tile.
  const double* durations_of(OpId op, const Blend& durations, Tile tile);

  const MeasuredRun& run_;
  std::vector<Unit> units_;            ///< in an order in which they can run
  std::vector<OpId> members_, waits_;  ///< of the units
  std::vector<ReplicaId> replicas_;    ///< that are replayed
  /// A sample of a tile is a step of one of replicas_.
  size_t stride_ = 0;        ///< largest sample count, rounded up to a multiple of kVectorSamples
  std::vector<double> end_;  ///< [op * stride_ + sample of the tile]
  std::vector<double> begin_, last_;  ///< by sample of the tile: of a unit; the last end of all
  // Where steps overlap: end_ of the step before (empty for the first), and the end of that step.
  std::vector<double> end_before_;
  double step_begin_ = 0;
  std::vector<double> row_;  ///< durations_of an op where they do not lie side by side
};

}  // namespace hocket::whatif

// SPDX-License-Identifier: Apache-2.0
// The times of communications: which of them cannot be on one clock, and what of each is waiting
// for its other members.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif {

inline constexpr double kAtOnce = 1e-5;  ///< seconds: what starts within them does so at once
inline constexpr int64_t kOneOf = 10;    ///< as many transfers at most may be impossible
inline constexpr double kEarly = 1e-2;   ///< seconds by which a transfer ends too early, from where
                                         ///< on it is told

/// How much earlier than its last member starts a transfer may seem to end: what reads the clock
/// does not do so at once, and less than this does not change what is found.
double tolerance(const MeasuredRun& run);

/// Of what a step may lack (assemble()) there is no time where it does.
bool is_absent(const MeasuredRun& run, size_t cell);

/// Whether anybody waits for anybody.
bool has_others(const Group& group, const MeasuredRun& run);

/// By lane, when the first and the last member of a group started.
class Starts {
 public:
  explicit Starts(const MeasuredRun& run)
      : first(static_cast<size_t>(run.lanes())), last(first.size()), run_(run) {}
  /// Fills both. `timed`: without members that take no time.
  void of(const Group& group, bool timed = false);

  std::vector<double> first, last;

 private:
  const MeasuredRun& run_;
};

/// Calls `f(op, lane, early)` for all that transfer: by how many seconds an op ended before the
/// last member of its group had started. On one clock that is never more than 0. A negative
/// duration, of which no clock is the reason, counts as none.
template <typename F>
void each_transfer(const MeasuredRun& run, F&& f) {
  Starts starts(run);
  for (const Group& group : run.groups) {
    if (!has_others(group, run)) continue;
    starts.of(group);
    for (size_t i = group.eager ? 1 : 0; i < group.ops.size(); ++i) {
      const int32_t op = group.ops[i];
      for (int32_t lane = 0; lane < run.lanes(); ++lane) {
        const size_t cell = run.at(op, lane);
        f(op, lane,
          starts.last[static_cast<size_t>(lane)] - run.start[cell] -
              std::max(run.duration[cell], 0.0));
      }
    }
  }
}

/// Fills `measured_step`: of every step from the first start to the last end.
void measure_steps(MeasuredRun* run);

/// What becomes of a transfer that ended less than kEarly too early: it takes no time, or the
/// negative time that it took, as in StragglerAnalysis.
enum class Early { zero, kept };

/// Turns what members of groups waited for each other into waiting: their duration becomes the part
/// after the last start; unless nine of ten groups have members that all start at once, as in a
/// trace of transfers (but for those that StragglerAnalysis took to be 0, of which it says only the
/// end). What ends before that is a clock's fault and counts as 0, with a note from kEarly on; if
/// more than a tenth do by more than tolerance(), clocks are apart (MeasuredRun::clocks_apart).
void settle_transfers(MeasuredRun* run, Early how = Early::zero);

}  // namespace hocket::whatif

// SPDX-License-Identifier: Apache-2.0
// Times of communication: impossible ones on a common clock, and the part of each spent waiting for
// other members.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif {

inline constexpr double kSimultaneousSeconds =
    1e-5;  ///< seconds: starts within this distance count as simultaneous
inline constexpr int64_t kImpossibleOneIn = 10;  ///< one in this many transfers may be impossible
inline constexpr double kReportedEarlySeconds =
    1e-2;  ///< seconds by which a transfer must end too early to be reported

/// Returns how much earlier than its last member's start a transfer may seem to end. Clocks are not
/// read at once, and smaller differences do not change the findings.
double tolerance(const MeasuredRun& run);

/// Returns whether an optional op (assemble()) is absent in this cell.
bool is_absent(const MeasuredRun& run, size_t cell);

/// Returns whether any member waits for another.
bool has_others(const Group& group, const MeasuredRun& run);

/// By sample, when the first and the last member of a group started.
class Starts {
 public:
  explicit Starts(const MeasuredRun& run) : first(run.samples()), last(first.size()), run_(run) {}
  /// Fills both. `timed`: without members that take no time.
  void of(const Group& group, bool timed = false);

  std::vector<double> first, last;

 private:
  const MeasuredRun& run_;
};

/// Calls `f(op, sample, early)` for all transfers, with the seconds by which an op ended before the
/// last member of its group had started. On one clock that is never above 0. A negative duration,
/// which no clock explains, counts as none.
template <typename F>
void each_transfer(const MeasuredRun& run, F&& f) {
  Starts starts(run);
  for (const Group& group : run.groups) {
    if (!has_others(group, run)) continue;
    starts.of(group);
    for (size_t i = group.eager ? 1 : 0; i < group.ops.size(); ++i) {
      const OpId op = group.ops[i];
      for (SampleId sample = 0; sample < run.samples(); ++sample) {
        const size_t cell = run.at(op, sample);
        f(op, sample, starts.last[sample] - run.start[cell] - std::max(run.duration[cell], 0.0));
      }
    }
  }
}

/// Fills `measured_step`: of every step from the first start to the last end.
void measure_steps(MeasuredRun* run);

/// Handling of a transfer that ended less than kReportedEarlySeconds too early: it takes no time,
/// or the negative time that it took, as in StragglerAnalysis.
enum class Early { zero, kept };

/// Splits waiting for other members from transfer times: a duration becomes the part after the last
/// start. Leaves a trace of transfers alone (never a profile of kernels): one with nine of ten
/// groups that start at once. Transfers with only an end, as 0, from StragglerAnalysis do not
/// count. An end before that start is the clock's fault and counts as 0, with a note from
/// kReportedEarlySeconds on. If more than a tenth end earlier by more than tolerance(), sets
/// MeasuredRun::clocks_apart.
void settle_transfers(MeasuredRun* run, Early early_ends = Early::zero);

}  // namespace hocket::whatif

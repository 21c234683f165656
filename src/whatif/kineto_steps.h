// SPDX-License-Identifier: Apache-2.0
// Durations of steps in PyTorch profiles. A host marks its steps (ProfilerStep#N) where it launches
// them, possibly long before the device reaches them. Marks therefore give the host's position, and
// not a step's duration.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "whatif/kineto_profile.h"

namespace hocket::whatif::kineto {

/// On the common clock of all ranks, by step.
struct StepTimes {
  /// Begin by step, for a step without its predecessor: when the last rank's host begins it, or
  /// when the last device ends earlier work. Empty if there are no marks.
  std::map<int64_t, double> begins;
  /// By step: when the last rank's host begins it.
  std::map<int64_t, double> marks;
  /// End by step: when the last call and activity of the step, and of all steps before it, has
  /// ended on all ranks.
  std::map<int64_t, double> ends;

  /// Returns the end of the step before, or where that is not in the profiles the begin.
  double begin(int64_t step) const;
  /// Returns the time from the end of the step before to the step's own end. Where the step before
  /// is not in the profiles, it counts from the begin of the step.
  double length(int64_t step) const;
  /// Returns those of `steps` without a predecessor: their length says little. Devices were idle at
  /// their begin, while hosts begin other steps before devices end the last one.
  std::set<int64_t> cold(const std::vector<int64_t>& steps) const;
  /// Returns the median length of `steps`.
  double usual_length(const std::set<int64_t>& steps) const;
};

/// Returns by stream when the rank's device ends the work that was launched before a step.
std::map<int32_t, double> ends_of_earlier(const Profile& profile, int64_t step);

StepTimes step_times(const std::set<int64_t>& steps, const std::vector<Profile>& profiles);

}  // namespace hocket::whatif::kineto

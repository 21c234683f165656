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
  /// Begin by step: when the first rank's host begins it, or when devices reach it if they are
  /// still busy with earlier work. Empty if there are no marks.
  std::map<int64_t, double> begins;
  /// End by step: when the last call and activity of the step, and of all steps before it, has
  /// ended on all ranks.
  std::map<int64_t, double> ends;

  /// Returns the time from the end of the step before to the step's own end. Where the step before
  /// is not in the profiles, it counts from the begin of the step.
  double length(int64_t step) const;
};

StepTimes step_times(const std::set<int64_t>& steps, const std::vector<Profile>& profiles);

}  // namespace hocket::whatif::kineto

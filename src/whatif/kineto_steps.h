// SPDX-License-Identifier: Apache-2.0
// How long steps take by PyTorch profiles. A host marks its steps (ProfilerStep#N) where it
// launches them, which may be long before the device comes to them: marks say when a host is where,
// and not how long a step takes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "whatif/kineto_profile.h"

namespace hocket::whatif::kineto {

/// On the common clock of all ranks, by step.
struct StepTimes {
  /// When the first rank's host begins it, or if devices still do what lies before it, when they
  /// come to it. Empty: there are no marks.
  std::map<int64_t, double> begins;
  /// When the last of what its hosts called and launched has ended, on all ranks, and all of the
  /// steps before it.
  std::map<int64_t, double> ends;

  /// From the end of the step before to its own; from its begin where that is not in the profiles.
  double length(int64_t step) const;
};

StepTimes step_times(const std::set<int64_t>& steps, const std::vector<Profile>& profiles);

}  // namespace hocket::whatif::kineto

// SPDX-License-Identifier: Apache-2.0
// Causes of straggling: each known cause, its cure, and the replay of that cure.
#pragma once

#include <vector>

#include "whatif/analysis.h"
#include "whatif/measured_run.h"
#include "whatif/replay.h"

namespace hocket::whatif {

/// Fills causes and correlation of an analysis that is complete but for these.
void find_causes(const MeasuredRun& run, const std::vector<double>& ideal, Replayer* replayer,
                 Analysis* analysis);

/// Returns the words of a cause, such as "slow worker".
const char* to_string(Cause cause);

}  // namespace hocket::whatif

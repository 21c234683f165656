// SPDX-License-Identifier: Apache-2.0
// Workers that stood still: single ops that took far longer than what they can be compared with,
// and time between ops in which nothing was waited for.
#pragma once

#include <string>
#include <vector>

#include "whatif/block_times.h"
#include "whatif/measured_run.h"

namespace hocket::whatif {

struct Pauses {
  /// As MeasuredRun::duration: with the time for which a worker stood still before an op, which a
  /// replay leaves out otherwise, as part of this op; and without any pause.
  std::vector<double> paused, cured;
  bool between_ops = false;  ///< `paused` is not what was measured
  std::string evidence;      ///< one sentence
};

/// `step`: seconds. `may_be_sequences`: forward and backward times of micro-batches go together, or
/// cannot be compared, so that many long passes are no pauses.
Pauses find_pauses(const MeasuredRun& run, const BlockTimes& times, double step,
                   bool may_be_sequences);

}  // namespace hocket::whatif

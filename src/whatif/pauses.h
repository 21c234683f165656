// SPDX-License-Identifier: Apache-2.0
// Paused workers: single ops that took far longer than comparable ones, and gaps between ops in
// which the worker waited for nothing.
#pragma once

#include <string>
#include <vector>

#include "whatif/block_times.h"
#include "whatif/measured_run.h"

namespace hocket::whatif {

struct Pauses {
  /// Durations as in MeasuredRun::duration. `paused` adds a worker's pause before an op to that op,
  /// since a replay leaves gaps out. `cured` has no pauses.
  std::vector<double> paused, cured;
  bool between_ops = false;  ///< `paused` differs from the measured durations
  std::string evidence;      ///< one sentence
};

/// `step`: seconds. `may_be_sequences`: forward and backward times of micro-batches go together, or
/// cannot be compared, so that many long passes are no pauses.
Pauses find_pauses(const MeasuredRun& run, const BlockTimes& times, double step,
                   bool may_be_sequences);

}  // namespace hocket::whatif

// SPDX-License-Identifier: Apache-2.0
// A run with pipeline stages that all compute equally long, as if layers of the heaviest had moved
// to the others.
#pragma once

#include <vector>

#include "whatif/block_times.h"
#include "whatif/measured_run.h"

namespace hocket::whatif {

struct EvenStages {
  std::vector<double> passes;    ///< seconds of all passes, by stage, as measured
  std::vector<double> duration;  ///< MeasuredRun::duration of the run with even stages
};

/// Makes stages even. Requires: `times` is of `run`, which has passes and two stages or more.
EvenStages even_stages(const MeasuredRun& run, const BlockTimes& times);

}  // namespace hocket::whatif

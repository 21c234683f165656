// SPDX-License-Identifier: Apache-2.0
// The clocks of workers, by when their transfers ended.
#pragma once

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// Sets the clocks of workers that cannot be right: more than a tenth of a worker's transfers end,
/// by more than a thousandth of a step, before all members have started. Members of a collective
/// end together, so a clock's offset is the median difference of their ends. For workers that only
/// exchange messages, a message takes equally long in both directions. Keeps the offsets if fewer
/// transfers are impossible then. Moves starts and `measured_step`, and adds a note. Returns
/// whether any clock moved.
bool set_clocks(MeasuredRun* run);

}  // namespace hocket::whatif

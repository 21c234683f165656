// SPDX-License-Identifier: Apache-2.0
// The clocks of workers, by when their transfers ended.
#pragma once

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// Sets the clocks of workers where some of them cannot be right: of the transfers of a worker more
/// than a tenth ended, by more than a thousandth of a step, before all of their members had
/// started. Members of a collective end together, so a clock is off by the median of the
/// differences of these ends; of workers that only exchange messages a message takes as long there
/// as back. Kept if fewer transfers are impossible then. Moves starts and `measured_step`; a note
/// says so. True if it moved any.
bool set_clocks(MeasuredRun* run);

}  // namespace hocket::whatif

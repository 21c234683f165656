// SPDX-License-Identifier: Apache-2.0
// A step as the passes of its pipeline: few enough to draw all ranks of a large run under each
// other.
#pragma once

#include "trace/trace.h"

namespace hocket::diagnose {

/// Of a trace of one step one with an event per pass of a rank: all that its compute lane does of a
/// micro-batch in a stage, forward ("F") or backward ("B", or "I" and "W" where the gradients of
/// inputs and of weights are apart), from the first task to the last. The name is as in a schedule
/// CSV ("1F3"), also of passes that overlap ("0F3;1B2"). Between passes stands what a rank does
/// once per step, in whatever lane and without waiting for others: "gradients", "optimizer". A
/// rank's events do not overlap; in the gaps it waits. Empty: no task says its micro-batch.
trace::Trace passes_of(const trace::Trace& trace);

}  // namespace hocket::diagnose

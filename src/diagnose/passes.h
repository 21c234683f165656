// SPDX-License-Identifier: Apache-2.0
// A step as the passes of its pipeline: few enough to draw all ranks of a large run in one chart.
#pragma once

#include "trace/trace.h"

namespace hocket::diagnose {

/// Returns a trace with an event per pass of a rank, for a trace of one step. A pass is the work of
/// its compute lane for a micro-batch in a stage, from the first task to the last: forward ("F") or
/// backward ("B", or "I" and "W" where the gradients of inputs and of weights are separate). Names
/// are as in a schedule CSV ("1F3"), also for overlapping passes ("0F3;1B2"). Work done once per
/// step in any lane, without waiting, is drawn between the passes: "gradients", "optimizer". A
/// rank's events do not overlap; gaps are waits. Empty if no task has a micro-batch.
trace::Trace passes_of(const trace::Trace& trace);

}  // namespace hocket::diagnose

// SPDX-License-Identifier: Apache-2.0
// Conversion of a replay to a trace, in the schema of a run's trace, so that both open in Perfetto
// and can be compared.
#pragma once

#include "sim/engine.h"
#include "trace/trace.h"

namespace hocket::sim {

/// Returns one event per replayed task (requires ReplayOptions::record), arrows from sends to
/// receives, and the bytes of live step buffers over time per rank. Ranks that another one stands
/// for are left out; the property `replayed_ranks` lists them.
trace::Trace to_trace(const Program& program, const Replay& replay);

}  // namespace hocket::sim

// SPDX-License-Identifier: Apache-2.0
// A replay as a trace: the same schema as a run's, so that both open in Perfetto and compare.
#pragma once

#include "sim/engine.h"
#include "trace/trace.h"

namespace hocket::sim {

/// One event per replayed task (needs ReplayOptions::record), arrows from sends to receives, and
/// the bytes of live step buffers over time per rank. Where one rank stands for its class the
/// others are left out; the property `replayed_ranks` says so.
trace::Trace to_trace(const Program& program, const Replay& replay);

}  // namespace hocket::sim

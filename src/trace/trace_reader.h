// SPDX-License-Identifier: Apache-2.0
// Reads traces back, streamed: what `hocket whatif` analyses, and what tests compare.
#pragma once

#include <string>
#include <vector>

#include "trace/trace.h"

namespace hocket::trace {

class JsonStream;

struct ReadTraceOptions {
  /// Keep the events before the place where the file is cut off or malformed.
  bool keep_partial = false;
};
/// What the reader left out.
struct ReadTraceReport {
  int64_t skipped_events = 0;  ///< phases other than X, C, M, s, t, f; X and C without a time
  bool partial = false;        ///< cut off; only with keep_partial
  std::string cause;           ///< of `partial`
};

/// The value of a trace's key "waits", which is due; what is no list of lists is left out.
std::vector<TraceWaits> read_waits(JsonStream& json);

/// Reads what write_trace writes, and Chrome JSON of others as far as it goes: an object with
/// "traceEvents" or a bare array, plain or gzip whatever the name, streamed; unknown keys are
/// skipped, an unnamed thread becomes the lane "tid N", a process without a rank gets one by the
/// order of pids. Error: absent, cut off, malformed, not a trace (with the byte offset).
Trace read_trace(const std::string& path, const ReadTraceOptions& options = {},
                 ReadTraceReport* report = nullptr);

}  // namespace hocket::trace

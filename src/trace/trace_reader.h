// SPDX-License-Identifier: Apache-2.0
// Streaming reader of traces, for `hocket whatif` and tests.
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
/// Parts of the file that the reader left out.
struct ReadTraceReport {
  int64_t skipped_events = 0;  ///< phases other than X, C, M, s, t, f; X and C without a time
  bool partial = false;        ///< cut off; only with keep_partial
  std::string cause;           ///< reason for `partial`
};

/// Reads the value of a trace's key "waits"; anything but lists of lists is left out.
std::vector<TraceWaits> read_waits(JsonStream& json);

/// Reads traces of write_trace, and other Chrome JSON as far as it fits: an object with
/// "traceEvents" or a bare array, plain or gzip whatever the name. Unknown keys are skipped, an
/// unnamed thread becomes the lane "tid N", and a process without a rank gets one by the order of
/// pids. Throws Error if the file is absent, cut off, malformed or not a trace (with the byte
/// offset).
Trace read_trace(const std::string& path, const ReadTraceOptions& options = {},
                 ReadTraceReport* report = nullptr);

}  // namespace hocket::trace

// SPDX-License-Identifier: Apache-2.0
// Gradients of a step: when each becomes ready and its bytes, from a measured run or a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "whatif/measured_run.h"
#include "whatif/replay.h"

namespace hocket::whatif {

/// A gradient as the backward pass makes it.
struct Gradient {
  double bytes = 0;
  double ready = 0;  ///< seconds from the start of its step
};

/// One step's gradients of the ranks that sum them with each other, by when they are ready.
struct GradientLog {
  std::vector<Gradient> gradients;
};

/// Backward pass of one step, or the mean of several: one log per step and group of ranks.
struct BackwardStep {
  std::vector<GradientLog> logs;
  double backward = 0;  ///< seconds from the start of the step to the end of the backward pass
};

/// Gradients of a run, or of a table.
struct Gradients {
  std::vector<BackwardStep> steps;
  double step = 0;  ///< T: mean seconds of a step with free gradient all-reduces
  // Present if the run had gradient all-reduces; 0 otherwise.
  int64_t ranks = 0;         ///< of the trace that sum with each other
  double measured_step = 0;  ///< mean seconds of the replay with sums as measured
  double bus_bandwidth =
      0;  ///< bytes/s that a ring of `ranks` would have sent in the measured time
  std::vector<std::string> notes;  ///< parts left out, as sentences
};

/// Returns the gradients of `run`: all-reduces of the size of group that moves most bytes. A
/// payload is ready when the last of its ranks could begin if such all-reduces took no time. All
/// other communication stays as measured. Throws Error if the trace has no gradient all-reduce, or
/// none of known bytes.
Gradients gradients_of(const MeasuredRun& run, Replayer* replayer);

/// Reads a table of gradients in the order in which they become ready (docs/whatif.md). Throws
/// Error on an unknown key, a time before the one above it, or an empty table.
Gradients read_gradients(const std::string& path);

}  // namespace hocket::whatif

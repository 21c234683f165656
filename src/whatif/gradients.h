// SPDX-License-Identifier: Apache-2.0
// When the gradients of a step become ready, and how many bytes they are: of a measured run, or of
// a table.
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

/// What one step, or the mean of several, is of: a log per step and per set of ranks.
struct BackwardStep {
  std::vector<GradientLog> logs;
  double backward = 0;  ///< seconds from the start of the step to the end of the backward pass
};

/// Gradients of a run, or of a table.
struct Gradients {
  std::vector<BackwardStep> steps;
  double step = 0;  ///< T: mean seconds of a step in which sums of gradients take no time
  // Of a run that had such sums; 0 without.
  int64_t ranks = 0;         ///< of the trace that sum with each other
  double measured_step = 0;  ///< mean seconds of the replay with sums as measured
  double bus_bandwidth =
      0;  ///< bytes/s that a ring of `ranks` would have sent in the measured time
  std::vector<std::string> notes;  ///< what is left out
};

/// Gradients of `run`: sums of the size of group that moves most bytes; an op's payload is ready
/// when the last of its ranks could begin it if such sums took no time. All other communication
/// stays as measured. Error: no op of the trace is known to sum gradients, or of none it says how
/// many bytes.
Gradients gradients_of(const MeasuredRun& run, Replayer* replayer);

/// A table of gradients, in the order in which they become ready (docs/whatif.md). Error: not one
/// of these keys, a time before the one above it, or no gradient.
Gradients read_gradients(const std::string& path);

}  // namespace hocket::whatif

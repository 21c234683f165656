// SPDX-License-Identifier: Apache-2.0
// What a run wrote to metrics.jsonl: one JSON object per line, read back as columns of the report.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace hocket::diagnose {

/// A number that is not known.
inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

/// One training step: `train/...`, `perf/...`, `memory/...`, `moe/...` and `tokens` of a line.
struct TrainPoint {
  int64_t step = 0;
  double time_s = kMissing;  ///< since training began
  double tokens = kMissing;  ///< seen so far
  double loss = kMissing;    ///< nats per token
  double grad_norm = kMissing;
  double lr = kMissing;
  double tokens_per_s = kMissing;  ///< per device
  double tflops = kMissing;        ///< per device
  double mfu = kMissing;           ///< 0 .. 1
  double step_s = kMissing;
  double predicted_step_s = kMissing;
  double probe_gflops = kMissing;  ///< how fast the machine is behind this step
  double peak_gib = kMissing;
  double load_max_over_mean = kMissing;
};

/// One evaluation: `eval/loss` (nats per token) and `eval/bits_per_byte`.
struct EvalPoint {
  int64_t step = 0;
  double time_s = kMissing;
  double loss = kMissing;
  double bits_per_byte = kMissing;
};

/// Tokens that every expert received, `moe/load`: [layer with experts][expert], in any unit.
struct LoadPoint {
  int64_t step = 0;
  std::vector<std::vector<double>> load;
  /// Which layers of the model these are, `moe/layers`; where a line does not say: 0, 1, 2, ...
  std::vector<int64_t> layers;
};

struct Metrics {
  std::vector<TrainPoint> train;
  std::vector<EvalPoint> eval;
  std::vector<LoadPoint> load;
  int64_t skipped_lines = 0;  ///< not JSON objects with a step, such as a last line cut by a kill
};

/// How fast the machine was in a run, by a fixed product (`perf/probe_gflops`). NaN: no step says.
struct MachineSpeed {
  double gflops = kMissing;  ///< median
  double moved = kMissing;   ///< the 90th percentile over the 10th, less 1: 0.1 is 10 %
};
/// Steps whose time is compared with what was predicted.
struct StepsThatCount {
  std::vector<double> seconds;
  int64_t from_step = 0;
  bool settled = true;  ///< false: no step was late enough, and these are all there were
};
/// Those from `settled_step` on; of a run that ended before it all from `first_step` on.
StepsThatCount steps_that_count(const Metrics& metrics, int64_t first_step, int64_t settled_step);

/// From a step on.
MachineSpeed speed_of(const Metrics& metrics, int64_t from_step);

/// Reads metrics.jsonl. A step that comes again (the run was resumed) replaces itself and all later
/// ones; time goes on from where it was. Error: absent, or no line of it is a metrics line.
Metrics load_metrics(const std::string& path);

}  // namespace hocket::diagnose

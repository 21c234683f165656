// SPDX-License-Identifier: Apache-2.0
// Contents of a run's metrics.jsonl (one JSON object per line), as columns of the report.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace hocket::diagnose {

/// Marks an unknown number.
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
  double probe_gflops = kMissing;  ///< speed of the machine after this step
  double peak_gib = kMissing;
  double load_max_over_mean = kMissing;
};

/// One evaluation: `eval/loss` (nats per token) and `eval/bits_per_byte`.
struct EvalPoint {
  /// Losses of a set of data.evaluation: `eval/<name>/loss`.
  struct Set {
    double loss = kMissing;
    double bits_per_byte = kMissing;
  };
  int64_t step = 0;
  double time_s = kMissing;
  double loss = kMissing;
  double bits_per_byte = kMissing;
  std::map<std::string, Set> sets = {};  ///< by name
};

/// Tokens received by every expert, `moe/load`: [MoE layer][expert], in any unit.
struct LoadPoint {
  int64_t step = 0;
  std::vector<std::vector<double>> load;
  /// Indices of the layers in the model, `moe/layers`; 0, 1, 2, ... if absent.
  std::vector<int64_t> layers;
};

struct Metrics {
  std::vector<TrainPoint> train;
  std::vector<EvalPoint> eval;
  std::vector<LoadPoint> load;
  int64_t skipped_lines = 0;  ///< not JSON objects with a step, such as a last line cut by a kill
};

/// Speed of the machine in a run, measured by a fixed product (`perf/probe_gflops`). NaN: not
/// measured.
struct MachineSpeed {
  double gflops = kMissing;  ///< median
  double moved = kMissing;   ///< 90th percentile over the 10th, less 1: 0.1 is 10 %
};
/// Steps with a time that is compared with the prediction.
struct StepsThatCount {
  std::vector<double> seconds;
  int64_t from_step = 0;
  bool settled = true;  ///< false: no step was late enough, and these are all
};
/// Returns the steps from `settled_step` on, or from `first_step` on if the run ended before.
StepsThatCount steps_that_count(const Metrics& metrics, int64_t first_step, int64_t settled_step);

/// Returns the speed from a step on.
MachineSpeed speed_of(const Metrics& metrics, int64_t from_step);

/// Reads metrics.jsonl. A step that occurs again (the run was resumed) replaces itself and all
/// later ones; its time continues from the old clock. Throws Error if the file is absent or has no
/// metrics.
Metrics load_metrics(const std::string& path);

}  // namespace hocket::diagnose

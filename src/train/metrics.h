// SPDX-License-Identifier: Apache-2.0
// What a step tells: its line in metrics.jsonl (docs/metrics.md has the tags and formulas) and on
// the progress line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/session.h"

namespace hocket::train {

/// Tokens that the experts of one layer received in a step.
struct LayerLoad {
  int64_t layer = 0;            ///< of the model: dense layers count, too
  std::vector<int64_t> tokens;  ///< [expert]
};

struct StepMetrics {
  int64_t step = 0;
  int64_t tokens = 0;       ///< of this step, all ranks
  int64_t tokens_seen = 0;  ///< of this step and all before it
  double time_s = 0;        ///< of all steps so far, over all starts of the run
  double step_s = 0, predicted_step_s = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  double model_flops = 0;  ///< of a step, all ranks
  double peak_flops = 0;   ///< of one rank; 0: not known
  int64_t world = 1;
  int64_t peak_bytes = 0, planned_bytes = 0;  ///< memory of the rank that takes most, needs most
  std::vector<LayerLoad> expert_load;         ///< of every layer with experts

  double tokens_per_s() const { return static_cast<double>(tokens) / step_s; }
  double flops_per_s() const { return model_flops / step_s; }
  /// Of the layer whose busiest expert is furthest above the layer's mean; 0 without experts.
  double load_max_over_mean() const;
};

/// Of the session's last step, every layer with experts in order.
std::vector<LayerLoad> expert_load(const engine::Session& session);

/// The line of a step.
nlohmann::json to_line(const StepMetrics& metrics);

/// "step 3/60  loss 7.6489  10414 tok/s  ETA ...": `steps` is where the run ends, `eta_s` the time
/// until then, `held_out` what is said of the last evaluation ("": none yet).
std::string progress_text(const StepMetrics& metrics, int64_t steps, double eta_s,
                          const std::string& held_out);

/// metrics.jsonl of one run.
class MetricsFile {
 public:
  explicit MetricsFile(std::string path) : path_(std::move(path)) {}

  /// A new run begins with an empty file.
  void clear() const;
  /// Error: a disk that is full.
  void append(const nlohmann::json& line) const;
  /// Of a killed run: removes the lines of steps that will be done again, and half a line. Error: a
  /// whole line without a step.
  void drop_after(int64_t step) const;
  /// True if the last line is the evaluation at the end of a run.
  bool ends_with_final_evaluation() const;

 private:
  std::string path_;
};

}  // namespace hocket::train

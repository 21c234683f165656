// SPDX-License-Identifier: Apache-2.0
// Metrics of a step: its line in metrics.jsonl (docs/outputs.md has the tags and formulas) and its
// progress line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/session.h"
#include "run/config.h"
#include "train/evaluate.h"
#include "train/tensorboard.h"

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
  int64_t skipped = 0;     ///< of the steps so far, those that changed nothing
  double model_flops = 0;  ///< of a step, all ranks
  double probe_flops = 0;  ///< runtime::Probe behind this step; 0: not measured behind this one
  double peak_flops = 0;   ///< of one rank; 0: not known
  int64_t world = 1;
  int64_t peak_bytes = 0, planned_bytes = 0;  ///< memory of the rank that takes most, needs most
  std::vector<LayerLoad> expert_load;         ///< of every layer with experts
  Values values;                              ///< of preferences, of fine-tuning
  bool emulated = false;                      ///< durations are emulated (emulate.cluster)

  double tokens_per_s() const { return static_cast<double>(tokens) / step_s; }
  double flops_per_s() const { return model_flops / step_s; }
  /// Returns the largest ratio of a layer's busiest expert to its mean; 0 without experts.
  double load_max_over_mean() const;
};

/// Returns the load of every layer with experts, in order, in the session's last step.
std::vector<LayerLoad> expert_load(const engine::Session& session);

/// The line of a step, without its end.
std::string to_line(const StepMetrics& metrics);
/// Returns the line of an evaluation of `sets` after a step; `final`: at the end of a run.
std::string to_line(const std::vector<HeldOut>& sets, int64_t step, double time_s, bool final);

/// Returns "step 3/60  loss 7.6489  10414 tok/s  ETA ...": `steps` is the last step, `eta_s` the
/// time until then, `held_out` a note on the last evaluation ("": none yet).
std::string progress_text(const StepMetrics& metrics, int64_t steps, double eta_s,
                          const std::string& held_out);

/// Returns "step 250: held-out loss 5.0123, 2.3456 bits/byte (32 of 98 held-out sequences)", for an
/// evaluation of this duration. The same of the other sets follows, by their names.
std::string evaluation_text(const std::vector<HeldOut>& sets, int64_t step, double seconds);

/// metrics.jsonl of one run and, with output.tensorboard, its events. One rank writes it.
class MetricsFile {
 public:
  explicit MetricsFile(const engine::OutputSection& output)
      : folder_(output.dir),
        path_(output.dir + "/metrics.jsonl"),
        has_events_(output.tensorboard) {}

  /// Prepares a resumed run: removes the lines of steps after `step`, and a partial line left by a
  /// kill. 0, a new run: removes all lines. Throws Error for a complete line without a step.
  void begin_after(int64_t step);
  /// Adds a line, and its numbers to the events. Requires: begin_after(). Throws Error if the disk
  /// is full.
  void append(const std::string& line);
  /// Returns whether the last line is the evaluation at the end of a run.
  bool ends_with_final_evaluation() const;
  /// Returns whether the last line is any evaluation.
  bool ends_with_evaluation() const;

 private:
  void remove_after(int64_t step) const;

  std::string folder_, path_;
  bool has_events_;
  std::optional<EventFile> events_;
};

}  // namespace hocket::train

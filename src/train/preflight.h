// SPDX-License-Identifier: Apache-2.0
// Output of a run before its first step: the model, the plan, the static check's verdict, and the
// planned memory and predicted step time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check/check.h"
#include "engine/memory.h"
#include "engine/programs.h"
#include "run/describe.h"
#include "sim/simulator.h"
#include "trace/trace.h"
#include "train/profiler.h"
#include "train/training_data.h"

namespace hocket::train {

struct Prediction {
  double step_s = 0;
  std::vector<program::Memory> memory;  ///< planned, of a rank of every class
  double model_flops = 0;               ///< of a step, all ranks (docs/outputs.md)
  double peak_flops = 0;                ///< of one rank, measured by the profile
  double memory_bandwidth = 0;
  double probe_flops = 0;  ///< the machine's speed while tasks were timed; 0: not known
  int64_t params = 0, active_params = 0;
  check::Certificate certificate;
  std::string provenance;
  std::string check_summary;
  std::string no_sample;  ///< why no samples are drawn; "": they are
  trace::Trace trace;     ///< simulated
  sim::SimReport report;
};

/// Checks the training's program, with the memory of the evaluation (null: there is none) beside
/// it, and the evaluation's. Sets `certificate` and `check_summary`, and prints the result. Throws
/// Error (exit code 2) with the verdict if it refuses one.
void prove(const engine::Run& run, const engine::Compiled& compiled,
           const engine::Compiled* evaluation, Prediction& result);

/// Returns the static check of programs beside a training's own and its evaluation's, which
/// preflight() proves: log-probabilities of a policy and its reference. Requires: the run outlives
/// it.
engine::Programs::Inspect prove_others(const engine::Run& run);

/// Prints and returns the prediction; `weights` describes the initial weights. All processes time
/// the links between them, the first one the tasks, while the others wait for the step's time.
/// Throws Error (exit code 2) with the verdict if the check refuses the program, or the
/// evaluation's with held-out data. `reference`: program of a frozen model on the same ranks; null:
/// there is none.
Prediction preflight(const engine::Run& run, engine::Programs& programs, const TrainingData& data,
                     const std::string& weights, runtime::LocalRanks& ranks,
                     const engine::Compiled* reference = nullptr);

}  // namespace hocket::train

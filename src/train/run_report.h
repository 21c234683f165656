// SPDX-License-Identifier: Apache-2.0
// Collects the data of a run's trace and report, and writes them at the end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "diagnose/report.h"
#include "engine/programs.h"
#include "trace/trace.h"
#include "train/evaluate.h"
#include "train/preflight.h"
#include "train/step_times.h"

namespace hocket::train {

class RunReport {
 public:
  /// Requires: all arguments outlive the report.
  RunReport(const engine::Run& run, const TrainingData& data, const Prediction& prediction)
      : run_(run), data_(data), prediction_(prediction) {}

  /// Begins the report, before the first step: the held-out files for the baselines may be gone at
  /// the end. `command`: as typed; `began_with`: the run's initial state, empty: unknown.
  void begin(const std::string& command, const std::string& began_with);
  /// Draws the sample of a training that begins from the parameters of `first`, and releases its
  /// other memory. Keeps the sample for the report at the end, also of a resumed run. All processes
  /// call it.
  void draw_first(engine::Programs& first);
  /// Keeps the task times of a few settled steps.
  void after_step(const engine::Session& session, int64_t step);
  /// Writes trace.json.gz (if a step ran), predicted.json.gz and report.html into output.dir, and
  /// prints the results. All processes call it; the first one writes. The memory of all programs,
  /// except parameters, is released before the sample is drawn: nothing runs after it.
  void finish(engine::Programs& programs, int64_t steps_done);
  /// The same of a run that a signal ended before all `steps` were done, without a sample.
  void finish_stopped(engine::Programs& programs, int64_t steps_done, int64_t steps);
  /// The same for a run ended by `error`, as far as possible: without data of other processes, and
  /// ignoring further errors.
  void finish_failed(engine::Programs& programs, int64_t steps_done, const Error& error);

  /// The evaluation at the end.
  void set_final(const HeldOut& held_out) { final_ = held_out; }

 private:
  void gather_all(engine::Programs& programs);
  void write(engine::Programs& programs, const std::string& status, bool draws_sample);
  void gather_memory(const program::Program& program, const runtime::LocalRanks& ranks);
  std::optional<diagnose::Sample> draw_sample(engine::Programs& programs,
                                              const std::string& when) const;
  diagnose::ReportData describe_run(const std::string& status) const;
  trace::Trace median_step(const program::Program& program, const std::string& title) const;
  void fill_step(diagnose::ReportData& report, const program::Program& program,
                 const trace::Trace& measured) const;
  void write_traces(const trace::Trace& measured) const;
  std::vector<diagnose::ReportFile> list_files() const;
  std::vector<diagnose::Command> next_commands() const;
  void print_summary(const diagnose::ReportData& report, const program::Program& program) const;
  void print_step_time(const diagnose::ReportData& report) const;

  const engine::Run& run_;
  const TrainingData& data_;
  const Prediction& prediction_;
  std::string command_, began_with_, started_;
  std::vector<diagnose::Baseline> baselines_;
  std::optional<HeldOut> final_;
  int64_t first_step_ = 0, steps_seen_ = 0;
  std::vector<StepTimes> kept_;
  std::vector<program::Memory> measured_;  ///< at the end, of each class the rank that took most
};

}  // namespace hocket::train

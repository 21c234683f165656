// SPDX-License-Identifier: Apache-2.0
// Collects what a run's trace and report need, and writes them at the end.
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
  /// All of these outlive the report.
  RunReport(const engine::Run& run, const data::Dataset& dataset, const Prediction& prediction)
      : run_(run), dataset_(dataset), prediction_(prediction) {}

  /// Before the first step: the held-out files, which the baselines need, may be gone at the end.
  /// `command` as typed; `began_with` what the run started from at first, empty: not known.
  void begin(const std::string& command, const std::string& began_with);
  /// Keeps the task times of a few settled steps.
  void after_step(const engine::Session& session, int64_t step);
  /// Writes trace.json.gz (if a step ran), predicted.json.gz and report.html into output.dir, and
  /// prints what the run came to. All processes call it; the first one writes what all have done.
  /// The memory of all programs, but for the parameters, is given back before the sample is drawn:
  /// nothing runs after it.
  void finish(engine::Programs& programs, int64_t steps_done);
  /// The same of a run that a signal ended before all `steps` were done, without a sample.
  void finish_stopped(engine::Programs& programs, int64_t steps_done, int64_t steps);
  /// The same of a run that `error` ended, as far as it can be had: what other processes have is
  /// not asked for, and an error in doing so is none.
  void finish_failed(engine::Programs& programs, int64_t steps_done, const Error& error);

  /// The evaluation at the end.
  void set_final(const HeldOut& held_out) { final_ = held_out; }

 private:
  void gather_all(engine::Programs& programs);
  void write(engine::Programs& programs, const std::string& status, bool draws_sample);
  void gather_memory(const program::Program& program, const runtime::LocalRanks& ranks);
  std::optional<diagnose::Sample> draw_sample(engine::Programs& programs) const;
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
  const data::Dataset& dataset_;
  const Prediction& prediction_;
  std::string command_, began_with_, started_;
  std::vector<diagnose::Baseline> baselines_;
  std::optional<HeldOut> final_;
  int64_t first_step_ = 0, steps_seen_ = 0;
  std::vector<StepTimes> kept_;
  std::vector<program::Memory> measured_;  ///< at the end, of each class the rank that took most
};

}  // namespace hocket::train

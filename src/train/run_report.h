// SPDX-License-Identifier: Apache-2.0
// Collects what a run's trace and report need, and writes them at the end.
#pragma once

#include <string>
#include <vector>

#include "diagnose/report.h"
#include "trace/trace.h"
#include "train/preflight.h"
#include "engine/session.h"

namespace hocket::train {

class RunReport {
 public:
  /// Before the first step: the held-out files, which the baselines need, may be gone at the end.
  void begin(const data::Dataset& dataset, const std::string& command);
  /// Keeps the task times of a few settled steps.
  void after_step(engine::Session& session, int64_t step);
  /// Writes trace.json.gz (if a step ran), predicted.json.gz and report.html into output.dir.
  void finish(const engine::Run& run, engine::Session& session, const data::Dataset& dataset,
              const Prediction& prediction, int64_t steps_done);
  /// Memory of the rank that uses most: persistent and arena pages touched so far.
  double peak_gib(engine::Session& session) const;

  double final_bits_per_byte = 0;

 private:
  std::string command_, started_;
  std::vector<diagnose::Baseline> baselines_;
  int64_t first_step_ = 0, steps_seen_ = 0;
  struct Kept {
    int64_t step;
    std::vector<std::vector<runtime::TaskTime>> times;  ///< per rank
  };
  std::vector<Kept> kept_;
};

}  // namespace hocket::train

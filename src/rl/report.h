// SPDX-License-Identifier: Apache-2.0
// output.dir/report.html of a training by rewards: curves, samples, meanings, configuration in one
// file that needs nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "rl/report_samples.h"
#include "run/config.h"

namespace hocket::rl {

/// Collects what the page shows, of bounded size, and writes it. For one thread of the first
/// process.
class Report {
 public:
  enum class State { running, finished, stopped, failed };

  /// `command`: as typed. Requires: run and tokenizer outlive the report.
  Report(const engine::Run& run, const data::Tokenizer& tokenizer, std::string command);

  /// Keeps some groups of a step. `update`: the first that follows on them. Requires: `loss_inputs`
  /// are complete. The first step of a training that was resumed is taken from the page that lies
  /// there.
  void take_step(int64_t update, std::span<const Sample> samples,
                 std::span<const LossInputs> loss_inputs, const PromptOf& prompt_of);
  /// Keeps some groups of the evaluation after an update. `set`: its name, or empty.
  void take_evaluation(const std::string& set, int64_t update, std::span<const Sample> samples,
                       const PromptOf& prompt_of);

  /// Returns whether to write again: a minute has passed, and a hundred times as long as the last
  /// write took.
  bool is_due() const;
  /// Writes the page atomically. `done`, `of`: updates. Throws Error if that fails.
  void write(State state, int64_t done, int64_t of);
  /// Writes the page of a training that ended with an error; a failure of that is a warning.
  void write_failed(int64_t done, int64_t of, const std::string& error);
  /// Returns the page.
  std::string html(State state, int64_t done, int64_t of, const std::string& error = "") const;

 private:
  void recover_first();
  std::string samples_html() const;

  const engine::Run& run_;
  const data::Tokenizer& tokenizer_;
  const std::string command_, path_, began_;
  int64_t first_update_ = 0;                         ///< of the step in first_; 0: there is none
  std::string first_;                                ///< HTML of the first step
  ShownSamples newest_;                              ///< of the newest step
  std::map<std::string, ShownSamples> evaluations_;  ///< the newest, by set
  int64_t written_ns_ = 0;                           ///< time of the last write, or of the start
  double write_s_ = 0;                               ///< duration of the last write
};

}  // namespace hocket::rl

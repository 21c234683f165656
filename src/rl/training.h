// SPDX-License-Identifier: Apache-2.0
// One training by rewards: its state, which the files share that set it up, run its steps and
// record them.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "rl/critic.h"
#include "rl/last_failure.h"
#include "rl/learner.h"
#include "rl/memory.h"
#include "rl/report.h"
#include "rl/sampling.h"
#include "train/metrics.h"
#include "train/saver.h"
#include "train/start.h"
#include "train/stepper.h"
#include "train/stop.h"

namespace hocket::rl {

/// File of a checkpoint with the groups of UnevenGroups, if there are any.
constexpr const char* kSamplesFile = "samples.cbor";

/// One training, from start to end in run(). A step samples prompts, scores the samples while
/// others are drawn, computes advantages, and makes one or more updates. With ranks as processes
/// each runs it; the first scores and writes.
class Training {
 public:
  Training(const engine::Run& run, const std::string& command, train::StopSignals& stop)
      : run_(run),
        rl_(run.config.rl),
        section_(run.config.train),
        stop_(stop),
        data_(run, most_prompt_tokens(run)),
        metrics_(run.config.output),
        report_(run, data_.tokenizer(), command),
        saver_(run, stop),
        ranks_(engine::local_ranks(run)) {}
  /// Returns the exit code.
  int run();

 private:
  bool is_first() const { return ranks_.processes().index() == 0; }
  /// Prints on the first process only.
  template <class... Args>
  void print_once(fmt::format_string<Args...> text, Args&&... args) const {
    if (is_first()) {
      fmt::print(text, std::forward<Args>(args)...);
      std::fflush(stdout);
    }
  }
  void choose_length();
  bool nothing_left() const;
  void set_up();
  void describe(const engine::Compiled& compiled) const;
  void inspect(const engine::Compiled& compiled) const;
  int64_t most_micro_batches(int64_t prompts) const;
  std::string memory_remedy() const;
  void plan_memory();
  bool warn_of_changes() const;
  void load();
  train::StepperParts parts_of_stepper();
  int run_to_end(int64_t first);
  bool crossed(int64_t step, int64_t every) const;
  bool lacks_evaluation(int64_t first) const;
  bool save_is_due() const;
  bool signalled(int mine);
  /// Makes the next step; false: a signal came before it was sampled, or the task is solved.
  bool step();
  void save_learned(std::string_view reason);
  void save_before_update(const std::string& reason);
  void end_of_samples();
  bool warms_up() const;
  void measure_sampling(const Experience& experience);
  void update(Experience& experience, int64_t begin_ns);
  void end_step();
  bool is_saved() const;
  std::vector<Item> items_of(Experience& experience, size_t begin, size_t end) const;
  void measure(train::StepMetrics& metrics);
  void report_step(const train::StepMetrics& metrics);
  void evaluate(bool final);
  void record(const std::string& line);
  void write_samples(std::span<const Sample> samples, std::span<const LossInputs> loss_inputs,
                     const PromptOf& prompt_of, const std::string& name) const;
  void write_report(Report::State state);
  void save();

  const engine::Run& run_;
  const engine::RlSection& rl_;
  const engine::TrainSection& section_;
  train::StopSignals& stop_;
  PromptData data_;
  train::MetricsFile metrics_;
  Report report_;
  train::Saver saver_;
  train::Start start_;
  runtime::LocalRanks ranks_;
  std::optional<MemoryPlan> memory_;  ///< set once the update's program is proven
  engine::Programs programs_{run_, ranks_,
                             [this](const engine::Compiled& compiled) { inspect(compiled); }};
  train::TrainedReaders readers_{programs_};
  std::optional<Sampling> sampling_;
  std::optional<Learner> learner_;
  std::optional<Critic> critic_;
  std::optional<LastFailure> last_failure_;  ///< of the first process
  std::optional<train::Stepper> stepper_;
  std::unique_ptr<Progress> progress_;
  check::Certificate certificate_;
  std::vector<program::Memory> planned_;
  train::Course course_;
  int64_t prompts_ = 0;         ///< that were sampled for the steps so far
  int64_t step_prompts_ = 0;    ///< likewise, for the step under way
  int64_t tokens_ = 0;          ///< in updates so far
  int64_t generated_ = 0;       ///< tokens of samples and their prompts, in steps so far
  int64_t step_generated_ = 0;  ///< likewise, of the step under way
  int64_t step_begin_ns_ = 0;   ///< of the step under way
  int64_t warmups_ = 0;         ///< steps that trained the critic alone
  int64_t saved_warmups_ = 0;
  int64_t evaluated_ = -1, saved_at_ = 0;
  int64_t saved_rounds_ = 0;   ///< of the step under way, that the checkpoint of saved_at_ has
  bool is_solved_ = false;     ///< nothing is left to learn from, since samples are right
  int stopped_by_ = 0;         ///< the signal that ended the steps; 0: none
  train::Values step_values_;  ///< of the step under way
};

}  // namespace hocket::rl

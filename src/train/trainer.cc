// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/folder_lock.h"
#include "base/log.h"
#include "comm/together.h"
#include "graph/names.h"
#include "runtime/probe.h"
#include "train/evaluate.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/preflight.h"
#include "train/run_report.h"
#include "train/saver.h"
#include "train/schedule.h"
#include "train/start.h"
#include "train/stop.h"

namespace hocket::train {

namespace {

constexpr double kProbeEverySeconds = 5;

/// One training; go() is its story. It owns, in the order in which they are made: the data, where
/// the run stands (start_), the loader of its sequences, and the ranks, which hold parameters and
/// optimizer state, with two programs on them: that of the training, and that of the evaluator
/// (which has ranks of its own if it holds parameters otherwise). With ranks as processes each of
/// them runs it with its own rank; the first one decides what is decided once, and writes what is
/// written once.
class Trainer {
 public:
  Trainer(const engine::Run& run, const TrainOptions& options, StopSignals& stop)
      : run_(run),
        options_(options),
        stop_(stop),
        section_(run.config.train),
        dataset_(data_dir(run)),
        metrics_(run.config.output.dir + "/metrics.jsonl"),
        saver_(run, stop),
        ranks_(engine::local_ranks(run)) {}
  /// Returns the exit code.
  int go();

 private:
  bool is_first() const { return ranks_.processes().index() == 0; }
  bool nothing_left() const;
  void set_up();
  void load();
  int64_t run_steps();
  bool all_begin(int64_t step);
  bool any_signal(int mine);
  void one_step(int64_t step);
  void complete(StepMetrics& metrics) const;
  void evaluate(int64_t step, bool final);
  void save(int64_t step);

  const engine::Run& run_;
  const TrainOptions& options_;
  StopSignals& stop_;
  const engine::TrainSection& section_;
  data::Dataset dataset_;
  MetricsFile metrics_;
  Saver saver_;
  Start start_;
  std::unique_ptr<data::PackedLoader> loader_;
  Prediction prediction_;
  runtime::LocalRanks ranks_;
  engine::Programs programs_{run_, ranks_};
  engine::Session* session_ = nullptr;
  std::unique_ptr<Evaluator> evaluator_;
  RunReport report_{run_, dataset_, prediction_};
  std::unique_ptr<Progress> progress_;
  MemoryWatch memory_{run_};
  runtime::Probe probe_{kernels::cpu_backend()};
  int64_t probed_ns_ = 0;  ///< when it was measured last
  engine::RowsRead rows_;
  std::optional<engine::Batch> batch_;  ///< of the step that begins
  int64_t step_begin_ns_ = 0;
  int stopped_by_ = 0;                              ///< the signal that ended the steps; 0: none
  int64_t steps_ = 0;                               ///< where the run ends; 0: not known yet
  std::vector<std::pair<int64_t, double>> losses_;  ///< of all steps, over all starts of the run
  double trained_s_ = 0;                            ///< time in steps, over all starts of the run
  double mean_step_s_ = 0;                          ///< of the last ten or so, for the ETA
  std::string held_out_;  ///< what the progress line says of the last evaluation
};

/// A run is found or begun, goes step by step with evaluations and checkpoints in between, and ends
/// with a checkpoint, an evaluation and the report. A signal ends it after a step and its
/// checkpoint; the next start then does what is left.
int Trainer::go() {
  std::optional<FolderLock> lock;
  comm::together(ranks_.processes(), [&] {
    if (is_first()) {
      claim_folder(run_.config.output.dir);
      lock.emplace(run_.config.output.dir, "training into this folder",
                   "choose another output.dir");
    }
    return std::string();
  });
  saver_.open(ranks_);
  start_ = find_start(run_, dataset_, saver_.folder());
  comm::expect_same(ranks_.processes(), "train", "the start",
                    fmt::format("{}, {} steps, data {}", start_.describe(), start_.steps,
                                dataset_.fingerprint()));
  steps_ = start_.steps;
  if (nothing_left()) return 0;
  saver_.set_last(start_.from ? start_.from->folder() : "");
  set_up();
  // The first step's time may have shown that there was nothing left.
  if (start_.steps == 0 && nothing_left()) return 0;
  if (is_first()) {
    report_.begin(options_.command, start_.began_with);
  }
  load();
  tell_schedule(section_, steps_);

  progress_ = std::make_unique<Progress>();
  const int64_t step = run_steps();
  progress_->finish();
  if (step > start_.step || start_.step == 0) {
    save(step);
  }
  if (any_signal(stop_.end_steps())) {
    fmt::print("stopped after step {} of {}; the same command goes on from there\n", step, steps_);
    return exit_code_of(stopped_by_);
  }
  evaluate(step, true);
  evaluator_.reset();  // its memory is not needed for the sample
  report_.finish(programs_, step);
  return 0;
}

/// True, after saying so, if a checkpoint has all steps and the evaluation at the end was made.
bool Trainer::nothing_left() const {
  const auto decide = [&] {
    if (!start_.from || steps_ == 0 || start_.step < steps_) return false;
    return !dataset_.valid() || metrics_.ends_with_final_evaluation();
  };
  const bool nothing = ranks_.processes().from_first(is_first() && decide() ? "nothing" : "") != "";
  if (nothing) {
    fmt::print("already finished at step {} of {}; nothing to do (raise train.{} to go on)\n",
               start_.step, steps_, section_.minutes > 0 ? "minutes" : "steps");
  }
  return nothing;
}

/// Data, program and prediction, and only then the memory for them: what does not fit or is refused
/// ends the run before it has taken anything.
void Trainer::set_up() {
  check_data(run_, dataset_, start_.weights ? start_.weights->file().path() : "");
  // Data that are too short for one sequence are told before anything is timed.
  loader_ = std::make_unique<data::PackedLoader>(dataset_.train(), section_.seq_len,
                                                 dataset_.tokenizer().eos_id(),
                                                 static_cast<uint64_t>(section_.seed));
  if (options_.given) {
    programs_.replace({}, engine::compile_given(run_, *options_.given));
  }
  prediction_ = preflight(run_, programs_, dataset_, start_.describe(), ranks_);
  const check::Certificate& proven = prediction_.certificate;
  comm::expect_same(ranks_.processes(), "train", "program",
                    fmt::format("{}, graph {}, mesh {} ({}), collectives {}", proven.program.hex(),
                                proven.reference.hex(), proven.mesh.hex(), proven.ranks,
                                run_.config.plan.collectives));
  session_ = &programs_.session();
  rows_ = engine::rows_read(programs_.compiled(), ranks_.ids(), section_.global_batch,
                            section_.seq_len);
  if (dataset_.valid()) {
    evaluator_ = std::make_unique<Evaluator>(run_, dataset_, programs_, &programs_.compiled());
  }
  if (steps_ == 0) {
    steps_ = decide_steps(section_, prediction_.step_s);
  }
}

/// Parameters and optimizer state, and what was written down of the steps that are done.
void Trainer::load() {
  losses_ = start_.losses;
  trained_s_ = start_.trained_s;
  train::load(start_, run_, *session_);
  if (is_first()) {
    metrics_.begin_after(start_.step);
  }
}

/// Returns the last step that was run, or the one that the run started from.
int64_t Trainer::run_steps() {
  const auto is_due = [&](int64_t step, int64_t every) {
    return every > 0 && step % every == 0 && step < steps_;
  };
  int64_t step = start_.step;
  while (step < steps_ && all_begin(step + 1)) {
    ++step;
    one_step(step);
    if (is_due(step, section_.eval_every)) {
      evaluate(step, false);
    }
    if (is_due(step, section_.save_every)) {
      save(step);
    }
  }
  return step;
}

/// Reads this process's rows of the step's sequences, and counts with the others what there is to
/// predict in all. False if a signal came to one of the processes: then all stop.
bool Trainer::all_begin(int64_t step) {
  step_begin_ns_ = now_ns();
  batch_ = batch_of(*loader_, step, rows_.here, section_.seq_len);
  stop_.begin_step(step);
  int64_t targets = 0;
  for (const std::string& said : ranks_.processes().all_gather(
           fmt::format("{} {}", stop_.requested(), batch_->num_targets(rows_.first)))) {
    stopped_by_ = std::max(stopped_by_, std::stoi(said));
    targets += std::stoll(said.substr(said.find(' ')));
  }
  batch_->loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(targets, 1));
  return stopped_by_ == 0;
}

/// True if a signal came to one of the processes before or in the last step.
bool Trainer::any_signal(int mine) {
  for (const std::string& signal : ranks_.processes().all_gather(std::to_string(mine))) {
    stopped_by_ = std::max(stopped_by_, std::stoi(signal));
  }
  return stopped_by_ != 0;
}

/// Runs the program, and writes down what the step tells. The time of a step goes
/// from fetching its tokens to having its loss.
void Trainer::one_step(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.lr = learning_rate(section_, step, steps_);
  batch_->hyper = engine::Hyper::of(section_, metrics.lr, step);
  batch_->first_token = (step - 1) * section_.global_batch * section_.seq_len;
  session_->feed(*batch_);
  session_->step();
  metrics.loss = session_->loss();
  metrics.step_s = seconds_since(step_begin_ns_);
  metrics.grad_norm = session_->collect_as<double>(graph::names::kGradNorm)[0];
  if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) {
    fail_run("train", "step {}: loss {} and gradient norm {}; {}; try a lower train.lr", step,
             metrics.loss, metrics.grad_norm, saver_.last_or_none(" is intact"));
  }
  losses_.push_back({step, metrics.loss});
  trained_s_ += metrics.step_s;
  mean_step_s_ = mean_step_s_ == 0 ? metrics.step_s : 0.9 * mean_step_s_ + 0.1 * metrics.step_s;

  memory_.after_step(*session_, prediction_.memory);
  if (is_first() && !run_.config.timed.on() && seconds_since(probed_ns_) >= kProbeEverySeconds) {
    metrics.probe_flops = probe_.flops_per_s();
    probed_ns_ = now_ns();
  }
  complete(metrics);
  if (is_first()) {
    saver_.storing([&] { metrics_.append(to_line(metrics)); });
  }
  report_.after_step(*session_, step);
  const double eta_s = static_cast<double>(steps_ - step) * mean_step_s_;
  progress_->update(progress_text(metrics, steps_, eta_s, held_out_));
}

/// Adds what the step did not tell itself: where the run stands, and what was predicted and
/// planned.
void Trainer::complete(StepMetrics& metrics) const {
  metrics.tokens = section_.global_batch * section_.seq_len;
  metrics.tokens_seen = metrics.step * metrics.tokens;
  metrics.time_s = trained_s_;
  metrics.predicted_step_s = prediction_.step_s;
  metrics.model_flops = prediction_.model_flops;
  metrics.peak_flops = prediction_.peak_flops;
  metrics.world = run_.plan.world();
  metrics.peak_bytes = memory_.most();
  metrics.planned_bytes = most_planned(prediction_.memory);
  metrics.expert_load = expert_load(*session_);
  metrics.timed = run_.config.timed.on();
}

/// `final`: the one at the end, which the report compares with the baselines.
void Trainer::evaluate(int64_t step, bool final) {
  if (!evaluator_) return;
  const int64_t begin = now_ns();
  const HeldOut held_out =
      evaluator_->run(final ? section_.final_eval_sequences : section_.eval_sequences,
                      [&](int64_t done, int64_t total) {
                        progress_->update(fmt::format("validation {}/{} sequences", done, total));
                      });
  held_out_ = fmt::format("held-out {:.3f} bits/byte (step {})", held_out.bits_per_byte(), step);
  if (is_first()) {
    saver_.storing([&] { metrics_.append(to_line(held_out, step, trained_s_, final)); });
  }
  progress_->print(evaluation_text(held_out, step, seconds_since(begin)));
  if (final) {
    report_.set_final(held_out);
  }
}

void Trainer::save(int64_t step) {
  const Position position = {
      dataset_.fingerprint(), prediction_.certificate, start_.began_with, steps_, trained_s_,
      kernels::cpu_level()};
  progress_->print("saved " + saver_.save(step, *session_, dataset_, position, losses_));
  saver_.prune(step);
}

}  // namespace

int train(const engine::Run& run, const TrainOptions& options) {
  StopSignals stop;
  stop.set_resume("nothing was begun");
  return Trainer(run, options, stop).go();
}

}  // namespace hocket::train

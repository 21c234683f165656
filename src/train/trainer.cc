// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/run_on_all.h"
#include "engine/memory.h"
#include "train/best.h"
#include "train/evaluate.h"
#include "train/metrics.h"
#include "train/precompute.h"
#include "train/preference.h"
#include "train/preflight.h"
#include "train/report_data.h"
#include "train/run_report.h"
#include "train/sample.h"
#include "train/saver.h"
#include "train/schedule.h"
#include "train/start.h"
#include "train/stepper.h"
#include "train/stop.h"
#include "train/token_metrics.h"

namespace hocket::train {

namespace {

/// One training, from start to end in run(). It owns, in order of creation: the data, the position
/// of the run (start_), the loader of its sequences, and the ranks with parameters and optimizer
/// state and two programs: the training's, and the evaluator's (with a store of its own if its
/// layouts differ). With ranks as processes each runs it with its own rank; the first one makes
/// single decisions and writes shared files.
class Trainer {
 public:
  Trainer(const engine::Run& run, const TrainOptions& options, StopSignals& stop)
      : run_(run),
        options_(options),
        stop_(stop),
        section_(run.config.train),
        data_(TrainingData::open(run)),
        metrics_(run.config.output),
        saver_(run, stop),
        ranks_(engine::local_ranks(run)) {}
  /// Returns the exit code.
  int run();

 private:
  bool is_first() const { return ranks_.processes().index() == 0; }
  bool nothing_left() const;
  void choose_deciding_set();
  void open_rows();
  void set_up();
  PreferenceRows preference_rows() const;
  void compute_reference_values(bool shared);
  void draw_first_sample();
  void load();
  StepperParts parts_of_stepper();
  int run_to_end(int64_t first);
  void run_steps();
  bool all_go_on();
  bool any_signal(int mine);
  void correct_steps();
  void report_step(const StepMetrics& metrics);
  void evaluate(int64_t step, bool final);
  void save_once();
  void save(const StepsDone& done);
  void record(const std::string& line);
  void compare(double held_out_loss, int64_t step);
  void name_best() const;

  const engine::Run& run_;
  const TrainOptions& options_;
  StopSignals& stop_;
  const engine::TrainSection& section_;
  const std::unique_ptr<TrainingData> data_;
  MetricsFile metrics_;
  Saver saver_;
  Start start_;
  std::unique_ptr<data::TrainingRows> loader_;
  Prediction prediction_;
  runtime::LocalRanks ranks_;
  engine::Programs programs_{run_, ranks_, prove_others(run_)};
  engine::Session* session_ = nullptr;
  std::unique_ptr<Evaluator> evaluator_;
  RunReport report_{run_, *data_, prediction_};
  std::unique_ptr<Progress> progress_;
  engine::RowsRead rows_;
  std::unique_ptr<Preferences> preferences_;        ///< null: the objective is none of them
  std::unique_ptr<data::TrainingRows> mismatched_;  ///< kto: other answers behind the prompts
  std::optional<PreferenceInputs> inputs_;          ///< of preferences, in the last step
  std::optional<Stepper> stepper_;
  Course course_;           ///< where the run ends; of 0 steps: not known yet
  StepsDone corrected_;     ///< state at the last correction of the number of steps
  int64_t correct_at_ = 0;  ///< the step after which it is next
  int stopped_by_ = 0;      ///< the signal that ended the steps; 0: none
  std::string held_out_;    ///< note on the last evaluation for the progress line
  std::string best_by_;     ///< set with the deciding loss; empty: the data's own held-out part
  Best best_;               ///< of the evaluations so far
  int64_t saved_at_ = -1;   ///< the step of the last checkpoint of this start
};

/// Finds or starts a run, steps with evaluations and checkpoints in between, and ends with a
/// checkpoint, an evaluation and the report. A signal ends it after a step, with its checkpoint and
/// the report; the next start completes the rest.
int Trainer::run() {
  std::optional<FolderLock> lock;
  comm::run_on_all(ranks_.processes(), [&] {
    if (is_first()) {
      claim_folder(run_.config.output.dir);
      lock.emplace(run_.config.output.dir, "training into this folder",
                   "choose another output.dir");
    }
    return std::string();
  });
  saver_.open(ranks_);
  start_ = find_start(run_, *data_, saver_.folder());
  comm::expect_same(ranks_.processes(), "train", "the start",
                    fmt::format("{}, {} steps, data {}", start_.describe(), start_.course.steps,
                                data_->fingerprint()));
  course_ = start_.course;
  choose_deciding_set();
  if (section_.epochs > 0) {
    open_rows();
    course_.steps = steps_of_epochs(section_, loader_->sequences_per_epoch());
  }
  if (nothing_left()) return 0;
  saver_.set_last(start_.from ? start_.from->folder() : "");
  for (const std::string& note : saver_.read_files(*data_)) {
    if (is_first()) {
      fmt::print("{}\n", note);
    }
  }
  set_up();
  // The first step's time may have shown that there was nothing left.
  if (start_.course.steps == 0 && nothing_left()) return 0;
  if (is_first()) {
    report_.begin(options_.command, start_.began_with);
  }
  draw_first_sample();
  load();
  warn_of_schedule(section_, course_.steps);

  progress_ = std::make_unique<Progress>();
  const int64_t first = start_.done.step;
  stepper_.emplace(run_, *session_, parts_of_stepper(), std::move(start_.done));
  try {
    return run_to_end(first);
  } catch (const Error& error) {
    progress_->finish();
    report_.finish_failed(programs_, stepper_->done().step, error);
    throw;
  }
}

/// Runs the rest after step `first`: steps, a checkpoint, the evaluation and the report. Returns
/// the exit code.
int Trainer::run_to_end(int64_t first) {
  run_steps();
  progress_->finish();
  const int64_t step = stepper_->done().step;
  if (step > first || first == 0) {
    save_once();
  }
  if (any_signal(stop_.end_steps())) {
    report_.finish_stopped(programs_, step, course_.steps);
    fmt::print("stopped after step {} of {}; the same command goes on from there\n", step,
               course_.steps);
    return exit_code_of(stopped_by_);
  }
  evaluate(step, true);
  if (is_first() && section_.keep_best && best_.step > 0) {
    fmt::print("best: step {}, {} loss {:.4f}: {}\n", best_.step,
               best_.set.empty() ? "held-out" : best_.set, best_.loss,
               saver_.folder_of(best_.step));
  }
  evaluator_.reset();  // its memory is not needed for the sample
  report_.finish(programs_, step);
  return 0;
}

/// Returns whether a checkpoint has all steps and the evaluation at the end was made, and prints
/// that it does.
bool Trainer::nothing_left() const {
  const auto decide = [&] {
    if (!start_.from || course_.steps == 0) return false;
    if (start_.done.step < course_.steps && !best_.ends(section_)) return false;
    return !data_->holds_out() || metrics_.ends_with_final_evaluation();
  };
  const bool nothing = ranks_.processes().broadcast(is_first() && decide() ? "nothing" : "") != "";
  if (nothing) {
    const char* const length = section_.minutes > 0  ? "minutes"
                               : section_.epochs > 0 ? "epochs"
                               : section_.tokens > 0 ? "tokens"
                                                     : "steps";
    const bool early = start_.done.step < course_.steps;
    fmt::print("already finished at step {} of {}; nothing to do (raise train.{} to go on)\n",
               start_.done.step, course_.steps, early ? "early_stopping.patience" : length);
  }
  return nothing;
}

/// Finds the set with the loss that decides which checkpoint is best and when to stop. Losses of
/// other rows do not compare with it: then the best is looked for anew.
void Trainer::choose_deciding_set() {
  best_by_ = section_.best_by;
  std::string rows;
  for (const HeldOutSet& set : data_->held_out()) {
    if (section_.best_by.empty() || set.name == section_.best_by) {
      best_by_ = set.name;
      rows = fingerprint_of(set, section_.eval_sequences);
      break;
    }
  }
  best_ = continued(start_.best, best_by_, rows);
  if (!is_first() || !section_.compares()) return;
  if (!best_by_.empty()) {
    fmt::print("the best checkpoint and the end are by the loss of {}\n", best_by_);
  }
  if (start_.best.step > 0 && best_.step == 0) {
    fmt::print("evaluations before step {} were of {}: the best and the patience begin anew\n",
               start_.done.step + 1,
               start_.best.set == best_by_ ? "other held-out sequences" : "another held-out set");
  }
}

/// Opens the sequences of the training, once.
void Trainer::open_rows() {
  if (loader_) return;
  loader_ = data_->training();
  mismatched_ = data_->mismatched_training();
}

/// Sets up data, program and prediction, and only then their memory: a refusal ends the run before
/// it has taken anything.
void Trainer::set_up() {
  data_->check(start_.weights ? start_.weights->file().path() : "");
  // Data shorter than one sequence are reported before anything is timed.
  open_rows();
  const std::string note = note_of_step(section_, loader_->sequences_per_epoch());
  if (is_first() && !note.empty()) {
    fmt::print("{}\n", note);
  }
  if (options_.parsed_program) {
    programs_.replace(engine::training(run_),
                      engine::compile_program_text(run_, *options_.parsed_program));
  }
  if (run_.config.prefers()) {
    preferences_ = std::make_unique<Preferences>(run_, programs_);
    if (is_first()) {
      fmt::print("reference {}\n", preferences_->reference().described());
      check_reference(preferences_->reference(), start_);
    }
  }
  prediction_ = preflight(run_, programs_, *data_, start_.describe(), ranks_,
                          preferences_ ? preferences_->compiled() : nullptr);
  const check::Certificate& proven = prediction_.certificate;
  comm::expect_same(ranks_.processes(), "train", "program",
                    fmt::format("{}, graph {}, mesh {} ({}), collectives {}", proven.program.hex(),
                                proven.reference.hex(), proven.mesh.hex(), proven.ranks,
                                run_.config.plan.collectives));
  compute_reference_values(false);
  session_ = &programs_.session();
  rows_ = engine::rows_read(programs_.compiled(), ranks_.ids(), section_.global_batch,
                            section_.seq_len);
  if (preferences_) {
    // Every rank has all answers of a micro-batch.
    rows_.here.assign(rows_.here.size(), true);
  }
  if (data_->holds_out()) {
    evaluator_ = std::make_unique<Evaluator>(run_, *data_, programs_, &programs_.compiled(),
                                             preferences_.get());
  } else if (section_.compares()) {
    fail(data_->name(),
         "has nothing held out, by which train.{} decides; expected some; try data.valid_fraction "
         "or data.evaluation",
         section_.keep_best ? "keep_best" : "early_stopping");
  }
  if (course_.steps == 0) {
    course_.steps = decide_steps(section_, prediction_.step_s, start_.done);
  }
}

PreferenceRows Trainer::preference_rows() const { return {*data_, *loader_, mismatched_.get()}; }

/// Computes the values of the reference, with preference.precompute_ref_log_probs. A reference in a
/// store of its own runs before the training takes memory. One that is the policy without its
/// adapter (`shared`) runs once that is there.
void Trainer::compute_reference_values(bool shared) {
  const bool wanted = preferences_ && run_.config.preference.precompute_ref_log_probs;
  if (!wanted || preferences_->reference().shares_store() != shared) return;
  // Steps that fit into a time are not known for sure.
  const int64_t steps = section_.minutes > 0 ? 0 : course_.steps;
  compute_reference(run_, programs_, preference_rows(), steps, *preferences_);
}

/// Draws a sample of the model as a new training finds it, where a prompt is given or the examples
/// have one. The store is one of its own, and is given back.
void Trainer::draw_first_sample() {
  if (start_.from) return;
  if (is_first()) {
    forget_sample(run_.config.output.dir);
  }
  const bool has_prompt =
      (!run_.config.output.sample_prompt.empty() || data_->texts() == nullptr) &&
      !sample_prompt(run_, *data_).empty();
  if (!has_prompt || !prediction_.no_sample.empty()) return;
  engine::Programs first(run_, ranks_);
  first.replace(engine::training(run_), programs_.compiled());
  load_initial(start_, run_, first.compiled(), first.store());
  report_.draw_first(first);
}

/// Loads parameters and optimizer state, and the record of completed steps.
void Trainer::load() {
  train::load(start_, run_, *session_);
  if (preferences_) {
    compute_reference_values(true);
    preferences_->load();
  }
  if (is_first()) {
    metrics_.begin_after(start_.done.step);
    name_best();
  }
}

/// Returns the parts of a stepper. It trains on the rows that ranks here read, writes where the run
/// writes, and saves with where the run stands.
StepperParts Trainer::parts_of_stepper() {
  StepperParts parts;
  parts.data = [this](int64_t step) {
    engine::Batch batch =
        batch_of(*loader_, step, rows_.here, section_.seq_len, preferences_ != nullptr);
    if (preferences_) {
      const int64_t micro_batches = programs_.compiled().program.num_micro_batches;
      const RowNumbers numbers = preference_rows().numbers_of(step, batch.rows);
      std::optional<double> divergence;
      if (mismatched_) {
        engine::Batch mismatched = batch_of(*mismatched_, step, rows_.here, section_.seq_len, true);
        divergence = preferences_->divergence_of(mismatched, micro_batches, numbers).value();
      }
      inputs_.emplace(preferences_->prepare(batch, divergence, micro_batches, numbers));
      const int64_t answers = inputs_->places.count(rows_.first);
      return StepData{std::move(batch), answers};
    }
    const int64_t targets = batch.num_targets(rows_.first);
    return StepData{std::move(batch), targets};
  };
  parts.measure = [this](StepMetrics& metrics) {
    if (inputs_) {
      PreferenceStats stats(run_.config);
      stats.add(*inputs_, answer_outputs(*session_));
      metrics.values = stats.means();
      return;
    }
    TokenMetrics of_tokens;
    of_tokens.add(*session_);
    metrics.values = of_tokens.means(1);  // the loss's scale makes means
  };
  parts.metrics = [this](const StepMetrics& metrics) { report_step(metrics); };
  parts.save = [this](const StepsDone& done) { save(done); };
  parts.last_checkpoint = [this] { return saver_.last_or_none(" is intact"); };
  parts.known.predicted_step_s = prediction_.step_s;
  parts.known.model_flops = prediction_.model_flops;
  parts.known.peak_flops = prediction_.peak_flops;
  parts.planned = prediction_.memory;
  return parts;
}

/// Runs the steps from where the run stands to its end, or to the step after which a signal came.
void Trainer::run_steps() {
  const StepsDone& done = stepper_->done();
  corrected_.step = done.step;
  corrected_.seconds = done.seconds;
  correct_at_ = next_correction(done.step, course_.steps);
  while (done.step < course_.steps && !best_.ends(section_) && all_go_on()) {
    stepper_->run(learning_rate(section_, done.step + 1, course_));
    correct_steps();
    const bool last = done.step >= course_.steps;
    if (last && !section_.compares()) break;  // run() does the work that is due at the end
    if (section_.eval_every > 0 && (last || done.step % section_.eval_every == 0)) {
      evaluate(done.step, false);
    }
    if (!last && stepper_->save_is_due()) {
      save_once();
    }
  }
}

/// Prepares the next step. False if a signal came to one of the processes: then all stop.
bool Trainer::all_go_on() {
  stop_.begin_step(stepper_->done().step + 1);
  stopped_by_ = stepper_->prepare(stop_.requested());
  return stopped_by_ == 0;
}

/// Returns whether a signal came to one of the processes before or in the last step.
bool Trainer::any_signal(int mine) {
  for (const std::string& signal : ranks_.processes().all_gather(std::to_string(mine))) {
    stopped_by_ = std::max(stopped_by_, std::stoi(signal));
  }
  return stopped_by_ != 0;
}

/// Updates the number of steps from time to time, with train.minutes, by the last steps' time on
/// the first process.
void Trainer::correct_steps() {
  const StepsDone& done = stepper_->done();
  if (section_.minutes == 0 || done.step != correct_at_) return;
  const double step_s =
      (done.seconds - corrected_.seconds) / static_cast<double>(done.step - corrected_.step);
  const int64_t steps = std::stoll(ranks_.processes().broadcast(
      std::to_string(corrected_steps(section_, done.step, done.seconds, step_s))));
  constexpr double kWorthAWord = 0.1;
  const auto before = static_cast<double>(course_.steps);
  if (is_first() && std::abs(static_cast<double>(steps) - before) > kWorthAWord * before) {
    progress_->print(fmt::format("step {}: {} measured per step: {} steps instead of {}", done.step,
                                 human_time(step_s), steps, course_.steps));
  }
  course_ = course_.with_end(section_, done.step, steps);
  corrected_.step = done.step;
  corrected_.seconds = done.seconds;
  correct_at_ = next_correction(done.step, course_.steps);
}

/// Records the metrics of a step and shows its progress.
void Trainer::report_step(const StepMetrics& metrics) {
  record(to_line(metrics));
  report_.after_step(*session_, metrics.step);
  const double eta_s =
      static_cast<double>(course_.steps - metrics.step) * stepper_->recent_step_s();
  progress_->update(progress_text(metrics, course_.steps, eta_s, held_out_));
}

/// `final`: the one at the end, which the report compares with the baselines.
void Trainer::evaluate(int64_t step, bool final) {
  if (!evaluator_) return;
  const int64_t begin = now_ns();
  const std::vector<HeldOut> sets =
      evaluator_->run(final ? section_.final_eval_sequences : section_.eval_sequences,
                      [&](int64_t done, int64_t total) {
                        progress_->update(fmt::format("validation {}/{} sequences", done, total));
                      });
  const HeldOut& decides = *std::find_if(sets.begin(), sets.end(),
                                         [&](const HeldOut& set) { return set.name == best_by_; });
  held_out_ = decides.bytes > 0
                  ? fmt::format("{} {:.3f} bits/byte (step {})", decides.title(),
                                decides.bits_per_byte(), step)
                  : fmt::format("{} loss {:.4f} (step {})", decides.title(), decides.loss(), step);
  record(to_line(sets, step, stepper_->done().seconds, final));
  progress_->print(evaluation_text(sets, step, seconds_since(begin)));
  if (final && sets.front().name.empty()) {
    report_.set_final(sets.front());
  }
  if (!final && section_.compares()) {
    compare(decides.loss(), step);
  }
}

void Trainer::record(const std::string& line) {
  if (!is_first()) return;
  saver_.storing([&] { metrics_.append(line); });
}

/// Compares an evaluation with those before: saves the best, and says when the training ends.
void Trainer::compare(double held_out_loss, int64_t step) {
  const double loss =
      std::stod(ranks_.processes().broadcast(fmt::format("{:.17g}", held_out_loss)));
  if (best_.take(step, loss, section_.early_stopping.min_delta) && section_.keep_best) {
    save_once();
    name_best();
  }
  if (best_.ends(section_) && step < course_.steps) {
    progress_->print(fmt::format("step {}: no lower {} loss in {}: the training ends", step,
                                 best_.set.empty() ? "held-out" : best_.set,
                                 counted(best_.worse, "evaluation")));
  }
}

/// Writes which checkpoint is the best. Before there is one, the file of a former best goes: its
/// checkpoint is not kept any more.
void Trainer::name_best() const {
  if (!is_first() || !section_.keep_best) return;
  const std::string file = run_.config.output.dir + "/best.json";
  if (best_.step == 0) {
    saver_.storing([&] { remove_file(file); });
    return;
  }
  const std::string folder = saver_.folder_of(best_.step);
  if (!is_directory(folder)) return;  // saved before train.keep_best was set
  saver_.storing([&] { write_best(file, best_, folder); });
}

/// Saves the state after the last step, unless it is saved.
void Trainer::save_once() {
  if (saved_at_ != stepper_->done().step) {
    stepper_->save();
  }
}

void Trainer::save(const StepsDone& done) {
  Position position;
  position.fingerprint = data_->fingerprint();
  position.certificate = prediction_.certificate;
  position.began_with = start_.began_with;
  position.frozen = start_.frozen;
  position.course = course_;
  position.skipped = done.skipped;
  position.time_s = done.seconds;
  position.kernels = kernels::cpu_level();
  position.best = best_;
  progress_->print("saved " + saver_.save(done.step, *session_, *data_, position, done.losses));
  saved_at_ = done.step;
  saver_.prune(done.step, section_.keep_best ? best_.step : 0);
}

}  // namespace

int train(const engine::Run& run, const TrainOptions& options) {
  StopSignals stop;
  stop.set_resume("nothing was begun");
  return Trainer(run, options, stop).run();
}

}  // namespace hocket::train

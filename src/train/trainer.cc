// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/resolve.h"
#include "engine/params.h"
#include "train/evaluate.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/preflight.h"
#include "train/resume.h"
#include "train/run_report.h"
#include "train/stop.h"

namespace hocket::train {

double final_learning_rate(const engine::TrainSection& train) {
  return std::min(train.min_lr.value_or(train.lr / 10), train.lr);
}

double learning_rate(const engine::TrainSection& train, int64_t step, int64_t steps) {
  if (step <= train.warmup_steps) {
    return train.lr * static_cast<double>(step) / static_cast<double>(train.warmup_steps);
  }
  const double span = static_cast<double>(std::max<int64_t>(1, steps - train.warmup_steps));
  const double x = std::min(1.0, static_cast<double>(step - train.warmup_steps) / span);
  const double end = final_learning_rate(train);
  return end + (train.lr - end) * 0.5 * (1 + std::cos(std::numbers::pi * x));
}

engine::Batch batch_of(const data::PackedLoader& loader, int64_t step, int64_t rows,
                       int64_t seq_len) {
  engine::Batch batch(rows, seq_len);
  for (int64_t row = 0; row < rows; ++row) {
    loader.fill((step - 1) * rows + row, batch.row(row));
  }
  return batch;
}

namespace {

/// Share of a run's time that goes into evaluations and checkpoints, added to that of the steps:
/// 4 % at the quickstart's intervals.
constexpr double kBesideSteps = 0.04;

double now_s() { return static_cast<double>(now_ns()) * 1e-9; }

/// Error if a new training would replace files of the folder that no training of ours wrote: one
/// of ours leaves its lock there.
void expect_own_folder(const std::string& dir) {
  if (file_exists(dir + "/.lock") || file_exists(dir + "/checkpoints")) return;
  std::vector<std::string> others;
  for (const char* name : {"metrics.jsonl", "report.html", "trace.json.gz", "predicted.json.gz"}) {
    if (file_exists(join_path(dir, name))) {
      others.push_back(name);
    }
  }
  if (!others.empty()) {
    fail(dir,
         "holds {}, which no training wrote here and this one would replace; choose another "
         "output.dir, or remove them",
         join(others, ", "));
  }
}

/// Says what of the schedule does not do what it seems to.
void tell_schedule(const engine::TrainSection& section, int64_t steps) {
  if (section.min_lr && *section.min_lr > section.lr) {
    log_warning(
        "train.min_lr is {}, above train.lr: the learning rate stays at {} after the "
        "warm-up",
        *section.min_lr, section.lr);
  }
  if (section.warmup_steps > steps) {
    log_warning(
        "train.warmup_steps is {}, but the training has {} step{}: the learning rate ends "
        "at {} instead of {}",
        section.warmup_steps, steps, steps == 1 ? "" : "s", learning_rate(section, steps, steps),
        section.lr);
  }
}

class Trainer {
 public:
  Trainer(const engine::Run& run, const TrainOptions& options, StopSignals& stop)
      : run_(run),
        options_(options),
        stop_(stop),
        t_(run.config.train),
        dataset_(data_dir(run)),
        metrics_(run.config.output.dir + "/metrics.jsonl") {}
  /// Returns the exit code.
  int go();

 private:
  void find_start();
  void find_checkpoint();
  bool nothing_left() const;
  void set_up();
  void load_or_initialise();
  void one_step(int64_t step);
  void evaluate(int64_t step, bool final);
  void save(int64_t step);
  void tell_resume();
  template <typename Write>
  void storing(const Write& write) const;
  std::string checkpoints() const { return run_.config.output.dir + "/checkpoints"; }

  const engine::Run& run_;
  const TrainOptions& options_;
  StopSignals& stop_;
  const engine::TrainSection& t_;
  data::Dataset dataset_;
  MetricsFile metrics_;
  std::optional<checkpoint::Checkpoint> from_;  ///< what the run goes on from, until it is loaded
  std::optional<checkpoint::ModelWeights> weights_;  ///< what it starts from, until it is loaded
  std::string began_with_;                           ///< see Position
  std::string last_checkpoint_;
  std::shared_ptr<kernels::Backend> backend_;
  engine::Stores stores_;
  std::unique_ptr<engine::Session> session_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<data::PackedLoader> loader_;
  Prediction prediction_;
  RunReport report_{run_, dataset_, prediction_};
  std::unique_ptr<Progress> progress_;
  std::vector<std::pair<int64_t, double>> losses_;
  int64_t start_step_ = 0;
  int64_t steps_ = 0;     ///< 0: not known yet
  double trained_s_ = 0;  ///< time in steps, over all resumed runs
  double mean_step_s_ = 0;
  std::string held_out_;  ///< what the progress line says of the last evaluation
  MemoryWatch memory_{run_};
};

/// What the run starts from: a checkpoint of its own, other weights, or random values. Weights that
/// do not fit the model are told here, before anything is timed.
void Trainer::find_start() {
  find_checkpoint();
  if (from_) return;
  const engine::ModelSection& model = run_.config.model;
  if (!run_.weights.empty()) {
    const std::string folder =
        checkpoint::resolve_model(model.path, checkpoint::Need::intact).folder;
    weights_.emplace(folder, run_.model);
    began_with_ = "from " + folder;
    return;
  }
  began_with_ = fmt::format("random, seed {}", t_.seed);
  if (model.init != "auto" || !is_directory(model.path)) return;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (file_exists(join_path(model.path, name))) {
      fail(model.path,
           "has {}, which is not read, and no safetensors; try to save it again with "
           "safe_serialization=True, or model.init: random to leave its weights aside",
           name);
    }
  }
}

void Trainer::find_checkpoint() {
  steps_ = t_.minutes > 0 ? 0 : t_.steps;
  checkpoint::clean_checkpoints(checkpoints());
  if (!t_.resume) {
    if (!checkpoint::list_checkpoints(checkpoints()).empty()) {
      fail(checkpoints(),
           "holds checkpoints, and train.resume=false starts a new training; choose "
           "another output.dir, or remove this folder");
    }
    return;
  }
  const auto latest = checkpoint::latest_checkpoint(checkpoints(), checkpoint::Verify::all);
  if (!latest) return;
  from_.emplace(*latest, checkpoint::Verify::lengths);
  check_same_training(run_, dataset_.fingerprint(), *from_);
  last_checkpoint_ = *latest;
  const checkpoint::RunState& state = from_->state();
  start_step_ = state.step;
  losses_ = state.losses;
  const Position position = Position::of(*from_);
  trained_s_ = position.time_s;
  began_with_ = position.began_with;
  const std::string where = *latest + "/run.json: config";
  const nlohmann::json config = parse_json(state.config, where);
  // The number of steps that fit was decided when the training began.
  const double minutes = JsonView(config, where).at("train").get_double("minutes", 0);
  if (t_.minutes > 0 && minutes == t_.minutes) {
    steps_ = position.steps;
  }
}

/// True, after saying so, if a checkpoint has all steps and the evaluation at the end was made.
bool Trainer::nothing_left() const {
  if (!from_ || steps_ == 0 || start_step_ < steps_) return false;
  if (dataset_.valid() && !metrics_.ends_with_final_evaluation()) return false;
  fmt::print("already finished at step {} of {}; nothing to do (raise train.{} to go on)\n",
             start_step_, steps_, t_.minutes > 0 ? "minutes" : "steps");
  return true;
}

void Trainer::set_up() {
  check_data(run_, dataset_, weights_ ? weights_->file().path() : "");
  // Data that are too short for one sequence are told before anything is timed.
  loader_ = std::make_unique<data::PackedLoader>(
      dataset_.train(), t_.seq_len, dataset_.tokenizer().eos_id(), static_cast<uint64_t>(t_.seed));
  backend_ = kernels::cpu_backend();
  engine::Compiled compiled = engine::compile(run_);
  if (!options_.program_text.empty()) {
    program::Program given = program::parse_program(options_.program_text);
    // Batches are cut, and ranks started, as the plan says.
    if (given.mesh != compiled.program.mesh) {
      fail(run_.name,
           "the program is of another mesh of ranks than the plan in its configuration; "
           "expected pp {}, dp {}, ep {}; try to lower it again: hocket graph RUN --out FILE",
           run_.plan.pp, run_.plan.dp, run_.plan.ep);
    }
    compiled.program = std::move(given);
  }
  const std::string weights =
      from_ ? fmt::format("of checkpoint {} (step {})", from_->folder(), start_step_) : began_with_;
  prediction_ = preflight(run_, compiled, backend_, dataset_, weights);
  stores_.resize(static_cast<size_t>(run_.plan.world()));
  session_ = std::make_unique<engine::Session>(std::move(compiled), backend_, stores_,
                                               engine::executor_options(run_));
  if (dataset_.valid()) {
    evaluator_ = std::make_unique<Evaluator>(run_, dataset_, backend_, stores_);
  }
  if (steps_ == 0) {
    // Fixed before the first step, so that the schedule does not depend on the clock.
    const double each_s = prediction_.step_s * (1 + (t_.eval_every > 0 ? kBesideSteps : 0));
    steps_ = std::max<int64_t>(1, static_cast<int64_t>(t_.minutes * 60 / each_s));
    fmt::print("{} minutes at {} predicted per step: {} steps\n", t_.minutes,
               human_time(prediction_.step_s), steps_);
    std::fflush(stdout);
  }
}

void Trainer::load_or_initialise() {
  const auto& graph = session_->graph();
  if (from_) {
    restore(*from_, *session_);
    fmt::print("resumed from {} (step {})\n", from_->folder(), start_step_);
    if (const auto changes = changed_settings(run_, *from_); !changes.empty()) {
      fmt::print("changed since: {}\n", join(changes, ", "));
    }
    std::fflush(stdout);
    from_.reset();
    metrics_.drop_after(start_step_);
  } else if (weights_) {
    load_weights(*weights_, session_->compiled(), stores_);
    weights_.reset();
  }
  engine::initialise(graph, session_->program(), static_cast<uint64_t>(t_.seed), stores_);
  if (start_step_ == 0) {
    metrics_.clear();
  }
}

/// Runs `write`; its error (a full disk) also says what there is to go on from.
template <typename Write>
void Trainer::storing(const Write& write) const {
  try {
    write();
  } catch (const Error& error) {
    throw error.with(last_checkpoint_.empty()
                         ? "there is no checkpoint yet"
                         : last_checkpoint_ + " is complete, and the same command goes on from it");
  }
}

/// Fills the batch, runs the program, and writes down what the step tells. The time of a step goes
/// from fetching its tokens to having its loss.
void Trainer::one_step(int64_t step) {
  const double begin = now_s();
  engine::Batch batch = batch_of(*loader_, step, t_.global_batch, t_.seq_len);
  StepMetrics metrics;
  metrics.step = step;
  metrics.lr = learning_rate(t_, step, steps_);
  batch.loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(batch.num_targets(), 1));
  batch.hyper = engine::Hyper::of(t_, metrics.lr, step);
  session_->feed(batch);
  session_->step();
  metrics.loss = session_->loss();
  metrics.step_s = now_s() - begin;
  metrics.grad_norm = session_->collect_as<double>("grad_norm")[0];
  if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) {
    fail_run(
        "train", "step {}: loss {} and gradient norm {}; {}; try a lower train.lr", step,
        metrics.loss, metrics.grad_norm,
        last_checkpoint_.empty() ? "there is no checkpoint yet" : last_checkpoint_ + " is intact");
  }
  losses_.push_back({step, metrics.loss});
  trained_s_ += metrics.step_s;
  mean_step_s_ = mean_step_s_ == 0 ? metrics.step_s : 0.9 * mean_step_s_ + 0.1 * metrics.step_s;

  metrics.tokens = batch.rows * batch.seq_len;
  metrics.tokens_seen = step * metrics.tokens;
  metrics.time_s = trained_s_;
  metrics.predicted_step_s = prediction_.step_s;
  metrics.model_flops = prediction_.model_flops;
  metrics.peak_flops = prediction_.peak_flops;
  metrics.world = run_.plan.world();
  memory_.after_step(*session_, evaluator_.get(), prediction_.memory);
  metrics.peak_bytes = memory_.most();
  metrics.planned_bytes = most_planned(prediction_.memory);
  metrics.expert_load = expert_load(*session_);
  storing([&] { metrics_.append(to_line(metrics)); });
  report_.after_step(*session_, step);
  const double eta_s = static_cast<double>(steps_ - step) * mean_step_s_;
  progress_->update(progress_text(metrics, steps_, eta_s, held_out_));
}

void Trainer::evaluate(int64_t step, bool final) {
  if (!evaluator_) return;
  const double begin = now_s();
  const int64_t sequences = final ? t_.final_eval_sequences : t_.eval_sequences;
  const HeldOut held_out = evaluator_->run(sequences, [&](int64_t done, int64_t total) {
    progress_->update(fmt::format("validation {}/{} sequences", done, total));
  });
  held_out_ = fmt::format("held-out {:.3f} bits/byte (step {})", held_out.bits_per_byte(), step);
  storing([&] {
    metrics_.append({{"step", step},
                     {"time_s", trained_s_},
                     {"eval/loss", held_out.loss()},
                     {"eval/bits_per_byte", held_out.bits_per_byte()},
                     {"eval/complete", held_out.complete()},
                     {"eval/final", final}});
  });
  const std::string read = held_out.complete() ? "all held-out files"
                                               : fmt::format("{} of {} held-out sequences",
                                                             held_out.sequences, held_out.of);
  progress_->print(fmt::format("step {}: held-out loss {:.4f}, {:.4f} bits/byte ({}, {})", step,
                               held_out.loss(), held_out.bits_per_byte(), read,
                               human_time(now_s() - begin)));
  if (final) {
    report_.set_final(held_out.bits_per_byte(), held_out.complete() ? "" : read);
  }
}

void Trainer::save(int64_t step) {
  checkpoint::CheckpointContent content;
  content.config = &run_.model;
  content.end_of_text = dataset_.tokenizer().eos_id();
  content.state.step = step;
  content.state.seed = static_cast<uint64_t>(t_.seed);
  content.state.config = run_.resolved.to_json().dump();
  content.state.data =
      Position{dataset_.fingerprint(), prediction_.certificate, began_with_, steps_, trained_s_}
          .to_json();
  content.state.losses = losses_;
  content.files = checkpoint::tokenizer_files(dataset_.folder(), run_.model);
  storing([&] { last_checkpoint_ = train::save(checkpoints(), *session_, std::move(content)); });
  tell_resume();
  progress_->print(fmt::format("saved {}", last_checkpoint_));
  checkpoint::prune_checkpoints(checkpoints(), step, t_.keep_last);
}

/// A run is found or begun, goes step by step with evaluations and checkpoints in between, and ends
/// with a checkpoint, an evaluation and the report. A signal ends it after a step and its
/// checkpoint; the next start then does what is left.
int Trainer::go() {
  expect_own_folder(run_.config.output.dir);
  make_dirs(run_.config.output.dir);
  const FolderLock lock(run_.config.output.dir, "training into this folder",
                        "choose another output.dir");
  find_start();
  if (nothing_left()) return 0;
  tell_resume();
  const bool steps_known = steps_ > 0;
  set_up();
  if (!steps_known && nothing_left()) return 0;
  report_.begin(options_.command, began_with_);
  load_or_initialise();
  tell_schedule(t_, steps_);
  progress_ = std::make_unique<Progress>();
  int64_t step = start_step_;
  while (step < steps_ && stop_.requested() == 0) {
    stop_.wait_for_step(++step);
    one_step(step);
    if (t_.eval_every > 0 && step % t_.eval_every == 0 && step < steps_) {
      evaluate(step, false);
    }
    if (t_.save_every > 0 && step % t_.save_every == 0 && step < steps_) {
      save(step);
    }
  }
  progress_->finish();
  if (step > start_step_ || start_step_ == 0) {
    save(step);
  }
  stop_.wait_for_nothing();
  if (const int signal = stop_.requested(); signal != 0) {
    fmt::print("stopped after step {} of {}; the same command goes on from there\n", step, steps_);
    return exit_code_of(signal);
  }
  evaluate(step, true);
  report_.finish(*session_, std::move(evaluator_), step);
  return 0;
}

/// What a signal says that ends the process at once.
void Trainer::tell_resume() {
  stop_.set_resume(last_checkpoint_.empty()
                       ? "there is no checkpoint yet: the same command starts over"
                       : "the same command goes on from " + last_checkpoint_);
}

}  // namespace

int train(const engine::Run& run, const TrainOptions& options) {
  StopSignals stop;
  stop.set_resume("nothing was begun");
  return Trainer(run, options, stop).go();
}

}  // namespace hocket::train

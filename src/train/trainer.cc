// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/resolve.h"
#include "data/loader.h"
#include "train/evaluate.h"
#include "engine/params.h"
#include "train/preflight.h"
#include "train/resume.h"
#include "train/run_report.h"

namespace hocket::train {

double learning_rate(const engine::TrainSection& t, int64_t step, int64_t steps) {
  if (step <= t.warmup_steps)
    return t.lr * static_cast<double>(step) / static_cast<double>(t.warmup_steps);
  const double span = static_cast<double>(std::max<int64_t>(1, steps - t.warmup_steps));
  const double x = std::min(1.0, static_cast<double>(step - t.warmup_steps) / span);
  return t.min_lr + (t.lr - t.min_lr) * 0.5 * (1 + std::cos(3.141592653589793 * x));
}

namespace {

using SteadyClock = std::chrono::steady_clock;
double now_s() {
  return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count();
}

volatile std::sig_atomic_t g_stop = 0;
void on_signal(int signal) {
  if (g_stop) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  g_stop = 1;
}

/// The folder of the shards, which must be named.
const std::string& data_dir(const engine::Run& run) {
  if (run.config.data.dir.empty())
    fail(run.name, "data.dir is missing; expected the folder that `hocket data prepare` wrote");
  return run.config.data.dir;
}

class Trainer {
 public:
  Trainer(const engine::Run& run, const TrainOptions& options)
      : run_(run), options_(options), t_(run.config.train), dataset_(data_dir(run)) {}
  void go();

 private:
  void find_checkpoint();
  bool nothing_left() const;
  void set_up();
  void load_or_initialise();
  void one_step(int64_t step);
  void evaluate(int64_t step, bool all);
  void save(int64_t step);
  void write_metrics(const nlohmann::json& line);
  void drop_metrics_after(int64_t step) const;
  template <typename Write>
  void storing(const Write& write) const;
  void warn_if_uneven();
  std::vector<std::vector<int64_t>> expert_counts();
  std::string checkpoints() const { return run_.config.output.dir + "/checkpoints"; }
  std::string metrics() const { return run_.config.output.dir + "/metrics.jsonl"; }

  const engine::Run& run_;
  const TrainOptions& options_;
  const engine::TrainSection& t_;
  data::Dataset dataset_;
  std::optional<checkpoint::Checkpoint> from_;  ///< what the run goes on from, until it is loaded
  std::string last_checkpoint_;
  std::shared_ptr<runtime::Backend> backend_;
  engine::Stores stores_;
  std::unique_ptr<engine::Session> session_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<data::PackedLoader> loader_;
  Prediction prediction_;
  RunReport report_;
  std::unique_ptr<Progress> progress_;
  std::vector<std::pair<int64_t, double>> losses_;
  int64_t start_step_ = 0;
  int64_t steps_ = 0;  ///< 0: not known yet
  double trained_s_ = 0;  ///< time in steps, over all resumed runs
  double last_step_s_ = 0, mean_step_s_ = 0, last_bpb_ = 0;
  double model_flops_ = 0;
  bool warned_uneven_ = false;
};

void Trainer::find_checkpoint() {
  steps_ = t_.minutes > 0 ? 0 : t_.steps;
  checkpoint::clean_checkpoints(checkpoints());
  if (!t_.resume) {
    if (!checkpoint::list_checkpoints(checkpoints()).empty())
      fail(checkpoints(), "holds checkpoints, and train.resume=false starts a new training; choose "
           "another output.dir, or remove this folder");
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
  const std::string run = join_path(*latest, "run.json");
  const nlohmann::json data_json = parse_json(state.data, run + ": data");
  const nlohmann::json config_json = parse_json(state.config, run + ": config");
  const JsonView data(data_json, run + ": data"), config(config_json, run + ": config");
  trained_s_ = data.get_double("time_s", 0);
  if (t_.minutes > 0 && config.at("train").get_double("minutes", 0) == t_.minutes)
    steps_ = data.get_int("steps", 0);
}

/// True, after saying so, if a checkpoint has all steps and the evaluation at the end was made.
bool Trainer::nothing_left() const {
  if (!from_ || steps_ == 0 || start_step_ < steps_) return false;
  if (dataset_.valid()) {
    const std::string text = file_exists(metrics()) ? read_file(metrics()) : "";
    const auto lines = split(trim(text), '\n');
    const auto last = nlohmann::json::parse(lines.back(), nullptr, false);
    if (!last.is_object() || last.value("eval/complete", nlohmann::json()) != true) return false;
  }
  fmt::print("already finished at step {} of {}; nothing to do (raise train.{} to go on)\n",
             start_step_, steps_, t_.minutes > 0 ? "minutes" : "steps");
  return true;
}

void Trainer::set_up() {
  check_data(run_, dataset_, !from_ && run_.config.model.init == "weights");
  backend_ = runtime::load_torch_backend();
  engine::Compiled compiled = engine::compile(run_);
  if (!options_.program_text.empty()) compiled.program = program::parse_program(options_.program_text);
  prediction_ = preflight(run_, compiled, backend_, dataset_);
  model_flops_ = prediction_.model_flops;
  stores_.resize(static_cast<size_t>(run_.plan.world()));
  runtime::ExecutorOptions how;
  how.threads = engine::threads_per_rank(run_.plan);
  how.timeout = std::chrono::milliseconds(static_cast<int64_t>(run_.config.plan.timeout_s * 1000));
  session_ = std::make_unique<engine::Session>(std::move(compiled), backend_, stores_, how);
  loader_ = std::make_unique<data::PackedLoader>(dataset_.train(), t_.seq_len,
                                                 dataset_.tokenizer().eos_id(),
                                                 static_cast<uint64_t>(t_.seed));
  if (dataset_.valid()) evaluator_ = std::make_unique<Evaluator>(run_, dataset_, backend_, stores_);
  if (steps_ == 0) {
    // Fixed before the first step, so that the schedule does not depend on the clock.
    const double evals = t_.eval_every > 0 ? 1.04 : 1.0;
    steps_ = std::max<int64_t>(
        1, static_cast<int64_t>(t_.minutes * 60 / (prediction_.step_s * evals)));
    fmt::print("{} minutes at {} predicted per step: {} steps\n", t_.minutes,
               human_time(prediction_.step_s), steps_);
    std::fflush(stdout);
  }
}

void Trainer::load_or_initialise() {
  const auto& graph = session_->graph();
  if (from_) {
    for (const graph::Tensor& t : graph.tensors) {
      if (t.kind == graph::TensorKind::param)
        engine::scatter(t, session_->program(), stores_, [&](int64_t begin, int64_t count, void* to) {
          from_->weights().load_range(t.name, begin, count, t.type.dtype, to);
        });
      if (t.kind == graph::TensorKind::state)
        engine::scatter(t, session_->program(), stores_, [&](int64_t begin, int64_t count, void* to) {
          from_->load_optimizer_range(t.name, t.type, begin, count, to);
        });
    }
    fmt::print("resumed from {} (step {})\n", from_->folder(), start_step_);
    std::fflush(stdout);
    from_.reset();
    drop_metrics_after(start_step_);
  } else if (run_.config.model.init == "weights") {
    load_weights(
        checkpoint::resolve_model(run_.config.model.path, checkpoint::Need::intact).folder, run_,
        session_->compiled(), stores_);
  }
  engine::initialise(graph, session_->program(), static_cast<uint64_t>(t_.seed), stores_);
  // A new run starts with an empty file.
  if (start_step_ == 0) write_file_atomic(metrics(), "");
}

/// Of a killed run, the lines of steps that will be done again, and half a line.
void Trainer::drop_metrics_after(int64_t step) const {
  if (!file_exists(metrics())) return;
  const std::string text = read_file(metrics());
  std::string kept;
  int64_t number = 0;
  for (const auto& line : split(text, '\n')) {
    ++number;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const JsonView in(json, fmt::format("{}:{}", metrics(), number));
    if (in.get_int("step", 0) <= step) kept.append(line).append("\n");
  }
  if (kept != text) write_file_atomic(metrics(), kept);
}

/// Runs `write`; its error (a full disk) also says what there is to go on from.
template <typename Write>
void Trainer::storing(const Write& write) const {
  try {
    write();
  } catch (const Error& e) {
    const std::string text = e.what();  // "[where] what"
    const size_t end = text.find("] ");
    throw Error(e.kind(), text.substr(1, end - 1),
                text.substr(end + 2) +
                    (last_checkpoint_.empty()
                         ? "; there is no checkpoint yet"
                         : "; " + last_checkpoint_ +
                               " is complete, and the same command goes on from it"));
  }
}

void Trainer::write_metrics(const nlohmann::json& line) {
  storing([&] {
    FileWriter out(metrics(), FileWriter::Mode::append);
    out.write(line.dump() + "\n");
    out.close();
  });
}

/// Ragged buffers take memory beyond what the plan expects if a rank gets many more tokens.
void Trainer::warn_if_uneven() {
  for (int32_t r = 0; r < session_->run().size() && !warned_uneven_; ++r) {
    const auto& cls =
        session_->program().classes[static_cast<size_t>(session_->program().class_of(r))];
    if (cls.expected_bytes <= 0 || cls.expected_bytes >= cls.arena_bytes) continue;
    const int64_t touched = session_->run().rank(r).arena_resident_bytes();
    warned_uneven_ = touched > cls.expected_bytes;
    if (warned_uneven_)
      log_warning("rank {} has touched {} of its arena; the plan expects {}: routing is more uneven "
                  "than it counts on; nothing was dropped",
                  r, human_bytes(static_cast<double>(touched)),
                  human_bytes(static_cast<double>(cls.expected_bytes)));
  }
}

std::vector<std::vector<int64_t>> Trainer::expert_counts() {
  std::vector<std::vector<int64_t>> load;
  for (graph::TensorId id : session_->graph().outputs) {
    const graph::Tensor& t = session_->graph().tensor(id);
    if (t.name.rfind("moe.counts.", 0) != 0) continue;
    std::vector<int64_t> sum(static_cast<size_t>(t.type.numel()), 0);
    for (int32_t m = 0; m < session_->program().num_micro_batches; ++m) {
      auto part = session_->collect_as<int64_t>(t.name, m);
      for (size_t e = 0; e < sum.size(); ++e) sum[e] += part[e];
    }
    load.push_back(std::move(sum));
  }
  return load;
}

void Trainer::one_step(int64_t step) {
  const double begin = now_s();
  const int64_t s = t_.seq_len, n = session_->program().num_micro_batches;
  const int64_t rows = t_.global_batch / n;
  std::vector<std::vector<int32_t>> tokens, targets, positions;
  int64_t count = 0;
  for (int64_t m = 0; m < n; ++m) {
    std::vector<int32_t> tok(static_cast<size_t>(rows * s)), tgt(tok.size()), pos(tok.size());
    for (int64_t r = 0; r < rows; ++r) {
      auto row = [&](std::vector<int32_t>& v) {
        return std::span(v).subspan(static_cast<size_t>(r * s), static_cast<size_t>(s));
      };
      loader_->fill((step - 1) * t_.global_batch + m * rows + r, {row(tok), row(tgt), row(pos)});
    }
    count += std::count_if(tgt.begin(), tgt.end(), [](int32_t x) { return x >= 0; });
    tokens.push_back(std::move(tok));
    targets.push_back(std::move(tgt));
    positions.push_back(std::move(pos));
  }
  for (int32_t m = 0; m < static_cast<int32_t>(n); ++m) {
    session_->feed("tokens", m, tokens[static_cast<size_t>(m)].data());
    session_->feed("targets", m, targets[static_cast<size_t>(m)].data());
    session_->feed("positions", m, positions[static_cast<size_t>(m)].data());
  }
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(count, 1));
  const double lr = learning_rate(t_, step, steps_);
  const double hyper[3] = {lr, 1 - std::pow(t_.beta1, static_cast<double>(step)),
                           1 - std::pow(t_.beta2, static_cast<double>(step))};
  session_->feed("loss_scale", program::kNone, &scale);
  session_->feed("hyper", program::kNone, hyper);
  session_->step();
  const double loss = session_->loss();
  last_step_s_ = now_s() - begin;
  trained_s_ += last_step_s_;
  mean_step_s_ = mean_step_s_ == 0 ? last_step_s_ : 0.9 * mean_step_s_ + 0.1 * last_step_s_;
  const double norm = session_->collect_as<double>("grad_norm")[0];
  if (!std::isfinite(loss) || !std::isfinite(norm))
    fail_run("train", "step {}: loss {} and gradient norm {}; {}; try a lower train.lr", step, loss,
             norm, last_checkpoint_.empty() ? "there is no checkpoint yet"
                                            : last_checkpoint_ + " is intact");
  losses_.push_back({step, loss});

  const double tokens_per_s = static_cast<double>(t_.global_batch * s) / last_step_s_;
  const double world = static_cast<double>(run_.plan.world());
  nlohmann::json line = {{"step", step},
                         {"time_s", trained_s_},
                         {"tokens", step * t_.global_batch * s},
                         {"train/loss", loss},
                         {"train/grad_norm", norm},
                         {"train/lr", lr},
                         {"perf/step_s", last_step_s_},
                         {"perf/predicted_step_s", prediction_.step_s},
                         {"perf/tokens_per_s_per_device", tokens_per_s / world},
                         {"perf/tflops_per_device", model_flops_ / last_step_s_ / world / 1e12},
                         {"memory/peak_gib", report_.peak_gib(*session_)}};
  if (prediction_.peak_flops > 0)
    line["perf/mfu"] = model_flops_ / last_step_s_ / world / prediction_.peak_flops;
  double balance = 0;
  auto load = expert_counts();
  for (const auto& layer : load) {
    double sum = 0, most = 0;
    for (int64_t c : layer) sum += static_cast<double>(c), most = std::max(most, static_cast<double>(c));
    balance = std::max(balance, most * static_cast<double>(layer.size()) / std::max(sum, 1.0));
  }
  if (!load.empty()) {
    line["moe/load_max_over_mean"] = balance;
    if (step % std::max<int64_t>(1, steps_ / 60) == 0 || step == 1) line["moe/load"] = load;
  }
  write_metrics(line);
  report_.after_step(*session_, step);
  warn_if_uneven();
  const double left = static_cast<double>(steps_ - step) * mean_step_s_;
  progress_->update(fmt::format(
      "step {}/{}  loss {:.4f}  {:.0f} tok/s{}  step {} (predicted {}){}  {:.1f} GFLOP/s{}", step,
      steps_, loss, tokens_per_s, step < steps_ ? "  ETA " + human_time(left) : "",
      human_time(last_step_s_), human_time(prediction_.step_s),
      load.empty() ? "" : fmt::format("  experts max/mean {:.2f}", balance),
      model_flops_ / last_step_s_ / 1e9,
      last_bpb_ > 0 ? fmt::format("  held-out {:.3f} bits/byte", last_bpb_) : ""));
}

void Trainer::evaluate(int64_t step, bool all) {
  if (!evaluator_) return;
  const double begin = now_s();
  HeldOut h = evaluator_->run(all ? 0 : t_.eval_sequences, [&](int64_t done, int64_t total) {
    progress_->update(fmt::format("validation {}/{} sequences", done, total));
  });
  last_bpb_ = h.bits_per_byte();
  write_metrics({{"step", step},
                 {"time_s", trained_s_},
                 {"eval/loss", h.loss()},
                 {"eval/bits_per_byte", h.bits_per_byte()},
                 {"eval/complete", all}});
  progress_->print(fmt::format("step {}: held-out loss {:.4f}, {:.4f} bits/byte ({}, {})", step,
                               h.loss(), h.bits_per_byte(),
                               all ? "all held-out files" : "a sample of them",
                               human_time(now_s() - begin)));
  if (all) report_.final_bits_per_byte = h.bits_per_byte();
}

void Trainer::save(int64_t step) {
  checkpoint::CheckpointContent content;
  content.config = &run_.model;
  content.end_of_text = dataset_.tokenizer().eos_id();
  const auto& graph = session_->graph();
  std::vector<std::vector<std::byte>> hold;
  for (const graph::Tensor& t : graph.tensors) {
    if (t.kind != graph::TensorKind::param && t.kind != graph::TensorKind::state) continue;
    hold.push_back(engine::gather(t, session_->program(), stores_));
    auto& list = t.kind == graph::TensorKind::param ? content.params : content.optimizer;
    list.push_back({t.name, t.type, hold.back().data()});
  }
  content.state.step = step;
  content.state.seed = static_cast<uint64_t>(t_.seed);
  content.state.config = run_.resolved.to_json().dump();
  content.state.data = nlohmann::json{{"fingerprint", dataset_.fingerprint()},
                                      {"program_hash", prediction_.program_hash},
                                      {"steps", steps_},
                                      {"time_s", trained_s_}}
                           .dump();
  content.state.losses = losses_;
  content.files = checkpoint::tokenizer_files(dataset_.folder(), run_.model);
  storing([&] { last_checkpoint_ = checkpoint::save_checkpoint(checkpoints(), content); });
  progress_->print(fmt::format("saved {}", last_checkpoint_));
  checkpoint::prune_checkpoints(checkpoints(), step, t_.keep_last);
}

void Trainer::go() {
  make_dirs(run_.config.output.dir);
  const FolderLock lock(run_.config.output.dir, "training into this folder",
                        "choose another output.dir");
  find_checkpoint();
  if (nothing_left()) return;
  const bool steps_known = steps_ > 0;
  set_up();
  if (!steps_known && nothing_left()) return;
  report_.begin(dataset_, options_.command);
  load_or_initialise();
  g_stop = 0;
  auto old_int = std::signal(SIGINT, on_signal), old_term = std::signal(SIGTERM, on_signal);
  progress_ = std::make_unique<Progress>();
  int64_t step = start_step_;
  while (step < steps_ && !g_stop) {
    one_step(++step);
    if (t_.eval_every > 0 && step % t_.eval_every == 0 && step < steps_) evaluate(step, false);
    if (t_.save_every > 0 && step % t_.save_every == 0 && step < steps_) save(step);
  }
  std::signal(SIGINT, old_int);
  std::signal(SIGTERM, old_term);
  progress_->finish();
  if (step > start_step_ || start_step_ == 0) save(step);
  if (g_stop && step < steps_) {
    fmt::print("stopped after step {} of {}; the same command goes on from there\n", step, steps_);
    return;
  }
  evaluate(step, true);
  report_.finish(run_, *session_, dataset_, prediction_, step);
}

}  // namespace

void train(const engine::Run& run, const TrainOptions& options) { Trainer(run, options).go(); }

}  // namespace hocket::train

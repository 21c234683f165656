// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/resolve.h"
#include "data/loader.h"
#include "train/evaluate.h"
#include "train/params.h"
#include "train/preflight.h"
#include "train/run_report.h"

namespace hocket::train {

double learning_rate(const TrainSection& t, int64_t step, int64_t steps) {
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

void append_line(const std::string& path, const std::string& line) {
  std::FILE* f = std::fopen(path.c_str(), "a");
  const std::string text = line + "\n";
  const bool ok = f && std::fwrite(text.data(), 1, text.size(), f) == text.size();
  const bool closed = f && std::fclose(f) == 0;
  if (!ok || !closed) fail_run("train", "can't write {}: {}", path, std::strerror(errno));
}

/// Removes all but the newest `keep` checkpoints (0: keeps all).
void prune_checkpoints(const std::string& folder, int64_t keep) {
  if (keep <= 0) return;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (std::string name = entry.path().filename(); name.rfind("step-", 0) == 0)
      names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  for (int64_t i = 0; i + keep < static_cast<int64_t>(names.size()); ++i)
    std::filesystem::remove_all(names[static_cast<size_t>(i)]);
}

class Trainer {
 public:
  Trainer(const Run& run, const TrainOptions& options)
      : run_(run), options_(options), t_(run.config.train), dataset_(run.config.data.dir) {}
  void go();

 private:
  void set_up();
  void resume_or_initialise();
  void one_step(int64_t step);
  void evaluate(int64_t step, bool all);
  void save(int64_t step);
  void write_metrics(const nlohmann::json& line);
  std::vector<std::vector<int64_t>> expert_counts();
  std::string checkpoints() const { return run_.config.output.dir + "/checkpoints"; }

  const Run& run_;
  const TrainOptions& options_;
  const TrainSection& t_;
  data::Dataset dataset_;
  std::shared_ptr<runtime::Backend> backend_;
  Stores stores_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<data::PackedLoader> loader_;
  Prediction prediction_;
  RunReport report_;
  std::unique_ptr<Progress> progress_;
  std::vector<std::pair<int64_t, double>> losses_;
  int64_t start_step_ = 0, steps_ = 0;
  double trained_s_ = 0;  ///< time in steps, over all resumed runs
  double last_step_s_ = 0, mean_step_s_ = 0, last_bpb_ = 0;
  double model_flops_ = 0;
};

void Trainer::set_up() {
  make_dirs(run_.config.output.dir);
  if (dataset_.tokenizer().vocab_size() > run_.model.vocab_size)
    fail(run_.name, "the tokenizer of {} has {} tokens; expected at most the model's vocab_size {}",
         dataset_.folder(), dataset_.tokenizer().vocab_size(), run_.model.vocab_size);
  backend_ = runtime::load_torch_backend();
  Compiled compiled = compile(run_);
  if (!options_.program_text.empty()) compiled.program = program::parse_program(options_.program_text);
  prediction_ = preflight(run_, compiled, backend_, dataset_);
  model_flops_ = prediction_.model_flops;
  stores_.resize(static_cast<size_t>(run_.plan.world()));
  runtime::ExecutorOptions how;
  how.threads = threads_per_rank(run_.plan);
  how.timeout = std::chrono::milliseconds(static_cast<int64_t>(run_.config.plan.timeout_s * 1000));
  session_ = std::make_unique<Session>(std::move(compiled), backend_, stores_, how);
  loader_ = std::make_unique<data::PackedLoader>(dataset_.train(), t_.seq_len,
                                                 dataset_.tokenizer().eos_id(),
                                                 static_cast<uint64_t>(t_.seed));
  if (dataset_.valid()) evaluator_ = std::make_unique<Evaluator>(run_, dataset_, backend_, stores_);
  steps_ = t_.steps;
  if (t_.minutes > 0) {
    // Fixed before the first step, so that the schedule does not depend on the clock.
    const double evals = t_.eval_every > 0 ? 1.04 : 1.0;
    steps_ = std::max<int64_t>(
        1, static_cast<int64_t>(t_.minutes * 60 / (prediction_.step_s * evals)));
    fmt::print("{} minutes at {} predicted per step: {} steps\n", t_.minutes,
               human_time(prediction_.step_s), steps_);
  }
}

void Trainer::resume_or_initialise() {
  std::optional<std::string> latest;
  if (t_.resume) {
    checkpoint::clean_checkpoints(checkpoints());
    latest = checkpoint::latest_checkpoint(checkpoints());
  }
  const auto& graph = session_->graph();
  if (latest) {
    checkpoint::Checkpoint c(*latest);
    const nlohmann::json data = parse_json(c.state().data, *latest + "/run.json");
    if (data.value("fingerprint", "") != dataset_.fingerprint())
      fail(*latest, "was trained on other data than {}; try another output.dir or train.resume=false",
           dataset_.folder());
    for (const graph::Tensor& t : graph.tensors) {
      if (t.kind == graph::TensorKind::param)
        scatter(t, session_->program(), stores_, [&](int64_t begin, int64_t count, void* to) {
          c.weights().load_range(t.name, begin, count, t.type.dtype, to);
        });
      if (t.kind == graph::TensorKind::state)
        scatter(t, session_->program(), stores_, [&](int64_t begin, int64_t count, void* to) {
          c.load_optimizer_range(t.name, t.type, begin, count, to);
        });
    }
    start_step_ = c.state().step;
    losses_ = c.state().losses;
    trained_s_ = data.value("time_s", 0.0);
    if (t_.minutes > 0) steps_ = data.value("steps", steps_);
    fmt::print("resumed from {} (step {})\n", *latest, start_step_);
  } else if (run_.config.model.init == "weights") {
    load_weights(checkpoint::resolve_model(run_.config.model.path).folder, run_,
                 session_->compiled(), stores_);
  }
  initialise(graph, session_->program(), static_cast<uint64_t>(t_.seed), stores_);
  if (start_step_ == 0) {
    // A new run starts with an empty file.
    write_file_atomic(run_.config.output.dir + "/metrics.jsonl", "");
  }
}

void Trainer::write_metrics(const nlohmann::json& line) {
  append_line(run_.config.output.dir + "/metrics.jsonl", line.dump());
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
    fail_run("train", "step {}: loss {} and gradient norm {}; the last checkpoint is intact; try a "
             "lower train.lr", step, loss, norm);
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
  const double left = static_cast<double>(steps_ - step) * mean_step_s_;
  progress_->update(fmt::format(
      "step {}/{}  loss {:.4f}  {:.0f} tok/s  {:.1f} GFLOP/s{}  step {} (predicted {})  ETA {}{}",
      step, steps_, loss, tokens_per_s, model_flops_ / last_step_s_ / 1e9,
      load.empty() ? "" : fmt::format("  experts max/mean {:.2f}", balance),
      human_time(last_step_s_), human_time(prediction_.step_s), human_time(left),
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
  const auto& graph = session_->graph();
  std::vector<std::vector<std::byte>> hold;
  for (const graph::Tensor& t : graph.tensors) {
    if (t.kind != graph::TensorKind::param && t.kind != graph::TensorKind::state) continue;
    hold.push_back(gather(t, session_->program(), stores_));
    auto& list = t.kind == graph::TensorKind::param ? content.params : content.optimizer;
    list.push_back({t.name, t.type, hold.back().data()});
  }
  content.state.step = step;
  content.state.seed = static_cast<uint64_t>(t_.seed);
  content.state.config = run_.resolved.to_json().dump();
  content.state.data = nlohmann::json{{"fingerprint", dataset_.fingerprint()},
                                      {"next_sequence", step * t_.global_batch},
                                      {"steps", steps_},
                                      {"time_s", trained_s_}}
                           .dump();
  content.state.losses = losses_;
  content.state.extra = nlohmann::json{{"program_hash", prediction_.program_hash}}.dump();
  content.files = checkpoint::tokenizer_files(dataset_.folder(), run_.model);
  const std::string path = checkpoint::save_checkpoint(checkpoints(), content);
  progress_->print(fmt::format("saved {}", path));
  prune_checkpoints(checkpoints(), t_.keep_last);
}

void Trainer::go() {
  set_up();
  resume_or_initialise();
  report_.begin(run_, *session_, dataset_, prediction_, options_.command);
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
  if (step > start_step_ || start_step_ == 0) save(step);
  if (g_stop) {
    progress_->finish();
    fmt::print("stopped after step {} of {}; the same command goes on from there\n", step, steps_);
    return;
  }
  evaluate(step, true);
  progress_->finish();
  report_.finish(run_, *session_, dataset_, prediction_, step);
}

}  // namespace

void train(const Run& run, const TrainOptions& options) { Trainer(run, options).go(); }

}  // namespace hocket::train

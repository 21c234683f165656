// SPDX-License-Identifier: Apache-2.0
// hocket bench step: a training step, for bench/compare_peer.py and others there.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/rng.h"
#include "base/stats.h"
#include "base/text.h"
#include "checkpoint/resolve.h"
#include "cli/apps/bench.h"
#include "cli/inputs.h"
#include "comm/solo.h"
#include "data/zipf.h"
#include "engine/batch.h"
#include "engine/emulate.h"
#include "engine/memory.h"
#include "engine/params.h"
#include "engine/session.h"
#include "runtime/probe.h"
#include "train/known_inputs.h"
#include "train/step_times.h"

namespace hocket::cli {
namespace {

/// A line of /proc/self/status, in MiB.
double status_mib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  fail_run("hocket bench step", "no {} in /proc/self/status", key);
}

struct StepTime {
  double ms = 0, cpu_ms = 0, loss = 0;
};

/// Training steps on random tokens, as bench/peer_torch.py does them: Zipf-like, 8 batches in turn.
class StepBench {
 public:
  explicit StepBench(const engine::Run& run, std::vector<int64_t> documents = {})
      : run_(run),
        ranks_(new runtime::LocalRanks(engine::local_ranks(run))),
        documents_(std::move(documents)) {
    prepare();
  }
  /// Builds a single rank with peers that take no time and bring no data: the cost of a step
  /// without them.
  StepBench(const engine::Run& run, int32_t rank)
      : run_(run),
        ranks_(new runtime::LocalRanks(
            std::make_shared<comm::SoloWorld>(
                static_cast<int32_t>(run.plan.world()),
                [this](int32_t me, const comm::Call& call) { known_->fill(me, call); }),
            std::vector<int32_t>{rank}, kernels::cpu_backend(), engine::rank_options(run))),
        alone_(true) {
    prepare();
    known_ = std::make_unique<train::KnownInputs>(session_->compiled(), std::vector{rank});
  }
  comm::Processes& processes() const { return ranks_->processes(); }
  engine::HeldTime held() const { return engine::held_time(*session_); }
  const program::Program& program() const { return session_->program(); }
  /// Returns the times of the last step's tasks.
  train::StepTimes times() const { return train::times_of(*session_, steps_); }

  StepTime step() {
    const int64_t start = now_ns();
    const double cpu = cpu_ms();
    const auto& ids = batches_[steps_++ % 8];
    const engine::TrainSection& train = run_.config.train;
    engine::Batch batch(train.global_batch, train.seq_len);
    for (int64_t r = 0; r < batch.rows; ++r) {
      const data::SequenceOut row = batch.row(r);
      const int64_t document = document_length((steps_ - 1) * batch.rows + r);
      for (int64_t i = 0; i < train.seq_len; ++i) {
        const size_t to = static_cast<size_t>(i);
        const size_t from = static_cast<size_t>(r * (train.seq_len + 1) + i);
        row.tokens[to] = ids[from];
        row.targets[to] = ids[from + 1];
        row.positions[to] = static_cast<int32_t>(i % document);
      }
    }
    batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
    batch.hyper = engine::hyper_of(run_.config.optimizer, train.lr, steps_);
    session_->feed(batch);
    if (known_) {
      known_->feed(batch.feeds(), session_->compiled());
    }
    session_->step();
    const double loss = alone_ ? 0 : session_->loss();
    return {ms_since(start), cpu_ms() - cpu, loss};
  }

 private:
  void prepare() {
    engine::Compiled compiled = engine::compile(run_);
    engine::require_memory(run_, compiled.program);
    const runtime::Store store(*ranks_);
    engine::initialise(compiled.reference, compiled.program, 1, store);
    auto emulated = engine::emulate(run_, compiled.program);
    session_ = std::make_unique<engine::Session>(std::move(compiled), store, std::move(emulated));
    draw_batches();
  }

  void draw_batches() {
    const data::ZipfTokens frequent(run_.model.vocab_size);
    Rng rng(7);
    const int64_t tokens = run_.config.train.global_batch * (run_.config.train.seq_len + 1);
    for (auto& batch : batches_) {
      for (int64_t i = 0; i < tokens; ++i) {
        batch.push_back(frequent.draw(rng));
      }
    }
  }

  /// Returns the length of a sequence's documents, by its number over all steps.
  int64_t document_length(int64_t sequence) const {
    if (documents_.empty()) return run_.config.train.seq_len;
    return documents_[static_cast<size_t>(sequence) % documents_.size()];
  }

  const engine::Run& run_;
  std::unique_ptr<runtime::LocalRanks> ranks_;
  std::vector<int64_t> documents_;  ///< lengths, of a sequence after the other, in turn
  bool alone_ = false;
  std::unique_ptr<train::KnownInputs> known_;  ///< of a rank that is alone
  std::unique_ptr<engine::Session> session_;
  std::vector<int32_t> batches_[8];
  int64_t steps_ = 0;
};

struct StepOptions {
  std::string config, documents, trace;
  std::vector<std::string> set, variants;
  int64_t steps = 10, warmup = 3, block = 0;
  bool interactive = false, json = false;
};

void put_memory(JsonWriter& json, double idle_mib) {
  json.member("rss_mib", status_mib("VmRSS")).member("peak_mib", status_mib("VmHWM"));
  json.member("idle_mib", idle_mib);
}

/// Returns the trained run, before --set, as the text of a run.yaml.
std::string step_run(const std::string& model) {
  JsonWriter json;
  json.object().key("model").object().member("path", model).end();
  json.key("train").object().member("global_batch", 4).member("seq_len", 512);
  json.member("lr", 3e-4).member("max_grad_norm", 1.0).end();
  json.key("plan").object().member("micro_batch", 4).member("threads_per_rank", 2).end().end();
  return json.take();
}

/// Adds the emulated device, if there is one, so that no measurement is taken for a real one.
void put_device(JsonWriter& json, const engine::Run& run, const StepBench& bench) {
  if (!run.config.emulate.on()) return;
  const engine::HeldTime held = bench.held();
  json.member("device", engine::emulation_text(run));
  json.member("held_ms", held.held_s * 1e3).member("over_ms", held.over_s * 1e3);
}

/// Answers one line at a time on standard input, as bench/compare_peer.py asks for steps in turn.
int answer_lines(StepBench& bench, double idle_mib) {
  for (std::string line; std::getline(std::cin, line);) {
    const std::string word(trim(line));
    if (word.empty()) continue;
    if (word == "quit") break;
    JsonWriter json;
    json.object();
    if (word == "step") {
      const StepTime t = bench.step();
      json.member("ms", t.ms).member("cpu_ms", t.cpu_ms).member("loss", t.loss);
    } else if (word == "memory") {
      put_memory(json, idle_mib);
    } else {
      json.member("error", "unknown command " + quote(word) + "; expected step, memory or quit");
    }
    json.end();
    fmt::print("{}\n", json.take());
    std::fflush(stdout);
  }
  return 0;
}

/// Alternates blocks of steps with blocks of quiet ones, in which collectives return at once. The
/// difference is communication that no computation hides. Rank 0 prints the input of
/// bench/compare_dist.py.
int bench_blocks(const engine::Run& run, const StepOptions& options) {
  StepBench loud(run);
  comm::Processes& processes = loud.processes();
  StepBench quiet(run, processes.index());
  double loss = 0;
  const auto block_ms = [&](StepBench& bench, int64_t steps) {
    processes.barrier();
    const int64_t begin = now_ns();
    for (int64_t i = 0; i < steps; ++i) {
      loss = std::max(loss, bench.step().loss);
    }
    processes.barrier();
    return ms_since(begin) / static_cast<double>(steps);
  };
  for (StepBench* bench : {&loud, &quiet}) {
    block_ms(*bench, std::max<int64_t>(1, options.warmup));
  }
  std::vector<double> step_ms, quiet_ms, exposed_ms;
  for (int64_t block = 0; block < options.steps; ++block) {
    loss = 0;
    const bool quiet_first = block % 2 == 1;
    const double first = block_ms(quiet_first ? quiet : loud, options.block);
    const double second = block_ms(quiet_first ? loud : quiet, options.block);
    step_ms.push_back(quiet_first ? second : first);
    quiet_ms.push_back(quiet_first ? first : second);
    exposed_ms.push_back(step_ms.back() - quiet_ms.back());
  }
  if (processes.index() != 0) return 0;
  JsonWriter json;
  json.object().member("name", "hocket").member("world", int64_t{processes.size()});
  json.member("tokens_per_step", run.config.train.global_batch * run.config.train.seq_len);
  json.member("step_ms", step_ms).member("quiet_ms", quiet_ms);
  json.member("median_ms", median(step_ms)).member("quiet_median_ms", median(quiet_ms));
  json.member("exposed_ms", median(exposed_ms)).member("loss", loss);
  put_device(json, run, loud);
  json.end();
  fmt::print("{}\n", json.take());
  return 0;
}

/// A plan of a run beside others, "NAME" or "NAME=KEY=VALUE,KEY=VALUE".
struct Variant {
  std::string name;
  engine::Run run;
  std::unique_ptr<StepBench> bench;
  std::vector<double> step_ms, probe_flops;  ///< by block; the machine's speed right before it
  double loss = 0;
};

/// Alternates blocks of steps of all variants on the same ranks, reversing the order every round.
/// Rank 0 prints the input of bench/overlaps.py.
int bench_variants(const std::function<engine::Run(const std::vector<std::string>&)>& run_with,
                   const StepOptions& options) {
  std::vector<std::unique_ptr<Variant>> variants;
  for (const std::string& text : options.variants) {
    auto variant = std::make_unique<Variant>();
    const size_t end = std::min(text.find('='), text.size());
    variant->name = text.substr(0, end);
    std::vector<std::string> set = options.set;
    for (const std::string& key : split(end < text.size() ? text.substr(end + 1) : "", ',')) {
      if (!key.empty()) {
        set.push_back(key);
      }
    }
    variant->run = run_with(set);
    variant->bench = std::make_unique<StepBench>(variant->run);
    variants.push_back(std::move(variant));
  }
  comm::Processes& processes = variants[0]->bench->processes();
  runtime::Probe probe(kernels::cpu_backend());
  for (int64_t round = 0; round < options.warmup + options.steps; ++round) {
    for (size_t i = 0; i < variants.size(); ++i) {
      Variant& variant = *variants[round % 2 == 1 ? variants.size() - 1 - i : i];
      processes.barrier();
      const double speed = processes.index() == 0 ? probe.flops_per_s() : 0;
      processes.barrier();
      const int64_t begin = now_ns();
      for (int64_t step = 0; step < std::max<int64_t>(1, options.block); ++step) {
        variant.loss = variant.bench->step().loss;
      }
      processes.barrier();
      if (round < options.warmup) continue;
      variant.step_ms.push_back(ms_since(begin) /
                                static_cast<double>(std::max<int64_t>(1, options.block)));
      variant.probe_flops.push_back(speed);
    }
  }
  if (processes.index() != 0) return 0;
  JsonWriter json;
  json.object().member("world", int64_t{processes.size()}).key("variants").array();
  for (const auto& variant : variants) {
    json.object().member("name", variant->name).member("step_ms", variant->step_ms);
    json.member("probe_flops", variant->probe_flops);
    json.member("median_ms", median(variant->step_ms)).member("loss", variant->loss);
    put_device(json, variant->run, *variant->bench);
    json.end();
  }
  json.end().end();
  fmt::print("{}\n", json.take());
  return 0;
}

std::vector<int64_t> parse_documents(const std::string& text, int64_t seq_len) {
  std::vector<int64_t> lengths;
  if (text.empty()) return lengths;
  for (const std::string& word : split(text, ',')) {
    int64_t length = 0;
    if (!parse_int(word, &length) || length < 1 || length > seq_len) {
      fail("hocket bench step --documents", "got {}; expected lengths from 1 to train.seq_len, {}",
           quote(word), seq_len);
    }
    lengths.push_back(length);
  }
  return lengths;
}

/// Writes the steps of all ranks; only the first process writes.
void write_steps(const engine::Run& run, const StepBench& bench,
                 std::vector<train::StepTimes> steps, const std::string& path) {
  train::gather(bench.processes(), &steps);
  if (bench.processes().index() != 0) return;
  trace::Trace trace = train::to_trace(bench.program(), run.name, steps);
  trace.set_property("config", run.resolved.to_json_text());
  if (run.config.emulate.on()) {
    trace.set_property("device", engine::emulation_text(run));
  }
  trace::write_trace(trace, path);
}

int bench_step(const StepOptions& options) {
  // Reads memory before anything is compiled, runs steps without counting the first `warmup`, then
  // prints the median and the rise of memory.
  if (options.steps < 1 || options.warmup < 0) {
    fail("hocket bench step", "--steps and --warmup must be positive");
  }
  const bool alone = options.block == 0 && options.variants.empty() && !options.interactive;
  if (!alone && !(options.trace.empty() && options.documents.empty())) {
    fail("hocket bench step",
         "--trace and --documents are for steps one by one; expected none of --block, --variant, "
         "--interactive beside them");
  }
  require_output("hocket bench step --trace", options.trace, {options.config});
  const double idle = status_mib("VmRSS");
  // The highest RSS counts from here.
  std::ofstream("/proc/self/clear_refs") << "5";
  const std::string text =
      step_run(checkpoint::resolve_model(options.config, checkpoint::Need::config).config_file);
  const auto run_with = [&](const std::vector<std::string>& set) {
    return engine::parse_run(text, "hocket bench step", set);
  };
  if (!options.variants.empty()) return bench_variants(run_with, options);
  const engine::Run run = run_with(options.set);
  if (options.block > 0) return bench_blocks(run, options);
  StepBench bench(run, parse_documents(options.documents, run.config.train.seq_len));
  if (options.interactive) return answer_lines(bench, idle);

  std::vector<double> ms, cpu;
  std::vector<train::StepTimes> times;
  double loss = 0;
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    const StepTime t = bench.step();
    if (i < options.warmup) continue;
    if (!options.trace.empty()) {
      times.push_back(bench.times());
    }
    ms.push_back(t.ms);
    cpu.push_back(t.cpu_ms);
    loss = t.loss;
    if (!options.json) {
      fmt::print("step {:3}  {:8.1f} ms  loss {:.4f}\n", i - options.warmup, t.ms, loss);
    }
    std::fflush(stdout);
  }
  if (!options.trace.empty()) {
    write_steps(run, bench, std::move(times), options.trace);
  }
  const engine::TrainSection& train = run.config.train;
  const double tokens_per_s =
      static_cast<double>(train.global_batch * train.seq_len) / median(ms) * 1e3;
  const double above = status_mib("VmHWM") - idle;
  if (options.json) {
    JsonWriter json;
    put_memory(json.object(), idle);
    json.member("median_ms", median(ms)).member("cpu_ms", median(cpu)).member("step_ms", ms);
    json.member("loss", loss).member("tokens_per_s", tokens_per_s);
    json.member("peak_above_idle_mib", above);
    put_device(json, run, bench);
    json.end();
    fmt::print("{}\n", json.take());
  } else {
    fmt::print("median {:.1f} ms (CPU {:.0f} ms), {:.0f} tokens/s, peak {:.0f} MiB above idle\n",
               median(ms), median(cpu), tokens_per_s, above);
    if (run.config.emulate.on()) {
      const engine::HeldTime held = bench.held();
      fmt::print("{}\nlanes held {} in the last step, {} longer than that\n",
                 engine::emulation_text(run), human_time(held.held_s), human_time(held.over_s));
    }
  }
  return 0;
}

}  // namespace

void declare_bench_step(Args& args) {
  auto options = std::make_shared<StepOptions>();
  args.about("a training step on random tokens: the opposite side of bench/peer_torch.py",
             "4 sequences of 512 tokens in one micro-batch, fp32, 2 threads, AdamW, clipping at 1. "
             "With --interactive it answers lines on standard input: `step` trains one step and "
             "prints {\"ms\", \"cpu_ms\", \"loss\"}; `memory` prints {\"rss_mib\", \"peak_mib\", "
             "\"idle_mib\"}, idle being the process before it compiles anything; `quit`.");
  args.option("--config", "MODEL", &options->config, "a config.json or its folder");
  add_set(args, &options->set);
  args.flag("--interactive", &options->interactive, "answer lines (bench/compare_peer.py)");
  args.option("--steps", "N", &options->steps, "timed steps");
  args.option("--warmup", "N", &options->warmup, "steps before the timed ones");
  args.option(
      "--block", "N", &options->block,
      "time --steps blocks of N steps, in turn with blocks whose collectives return at once, and "
      "print the difference as JSON; only with ranks as processes (bench/compare_dist.py)");
  args.option("--variant", "NAME=KEY=VALUE,..", &options->variants,
              "keys of a variant, beside those of --set; may be repeated: runs blocks of all "
              "variants in turn, and prints their times as JSON (bench/overlaps.py)");
  args.option("--documents", "N,N,..", &options->documents,
              "tokens of each document in a sequence, of the sequences in turn over all steps; "
              "default: a sequence is one document");
  args.option("--trace", "FILE", &options->trace,
              "write the times at which the tasks of all timed steps ran, for Perfetto and `hocket "
              "whatif` (.json or .json.gz)");
  args.flag("--json", &options->json, "print the result as JSON");
  args.example("hocket bench step --config configs/models/quickstart --steps 5",
               "time of a step, tokens/s, peak memory");
  args.example("echo step | hocket bench step --config configs/models/quickstart --interactive",
               "the line protocol");
  args.run([options] {
    if (options->config.empty()) {
      fail("hocket bench step", "--config is missing; try --config configs/models/dense-26m");
    }
    return bench_step(*options);
  });
}

}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
// hocket bench: executor, compile, and a training step for bench/compare_peer.py
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "check/check.h"
#include "checkpoint/resolve.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "runtime/executor.h"
#include "engine/batch.h"
#include "engine/params.h"
#include "engine/session.h"
#include "train/preflight.h"

namespace hocket::cli {
namespace {

double ms_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-6; }

double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// ---- executor -----------------------------------------------------------------------------------

/// Kernels that do nothing: what remains is the executor.
class EmptyBackend : public kernels::Backend {
 public:
  std::string describe() const override { return "empty kernels"; }
  kernels::KernelFn find(std::string_view, kernels::Device, const kernels::OperandTypes&) const override {
    return [](const kernels::KernelArgs&) {};
  }
  void enter_thread(int) override {}
};

/// `count` tasks without operands; with `hop` each in another lane than the one before, on which it
/// depends.
program::Program empty_tasks(int32_t count, bool hop) {
  program::Program p;
  p.mesh.axes = {{"pp", 1}};
  program::Kind empty;
  empty.op = "empty";
  const program::KindId kind = p.intern(std::move(empty));
  program::RankClass cls;
  cls.name = "bench";
  for (int32_t i = 0; i < count; ++i) {
    program::Task t;
    t.kind = kind;
    t.lane = hop && i % 2 == 1 ? program::Lane::host : program::Lane::compute;
    if (hop && i > 0) t.deps = {i - 1};
    cls.tasks.push_back(std::move(t));
  }
  p.classes.push_back(std::move(cls));
  return p;
}

/// Nanoseconds per task, the median of `rounds` steps.
double time_empty(int32_t count, bool hop, int rounds) {
  const program::Program p = empty_tasks(count, hop);
  std::vector<runtime::PersistentStore> stores(1);
  runtime::LocalRun run(p, std::make_shared<EmptyBackend>(), stores, {});
  run.step();
  std::vector<double> ns;
  for (int i = 0; i < rounds; ++i) {
    const int64_t start = now_ns();
    run.step();
    ns.push_back(static_cast<double>(now_ns() - start) / count);
  }
  return median(ns);
}

void declare_executor(Args& args) {
  struct Options {
    int64_t tasks = 100'000;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  args.about("what the executor adds to a task", "Empty tasks in one lane, and in two lanes in turn.");
  args.option("--tasks", "N", &o->tasks, "in one lane");
  args.flag("--json", &o->json, "as JSON");
  args.example("hocket bench executor", "nanoseconds per task and per hop between lanes");
  args.example("hocket bench executor --tasks 20000 --json", "a shorter one, for a script");
  args.run([o] {
    if (o->tasks < 1 || o->tasks > 100'000'000)
      fail("hocket bench executor", "--tasks is {}; expected 1 to 100,000,000", o->tasks);
    const int32_t n = static_cast<int32_t>(o->tasks);
    const double lane = time_empty(n, false, 7);
    const double hop = time_empty(std::max(2, n / 20), true, 5);
    if (o->json)
      fmt::print("{}\n", nlohmann::json{{"tasks", n}, {"ns_per_task", lane}, {"ns_per_hop", hop}}.dump());
    else
      fmt::print("{} empty tasks in one lane: {:.0f} ns each (median of 7 steps)\n"
                 "a task in another lane than the one it waits for: {:.0f} ns\n", n, lane, hop);
    return 0;
  });
}

// ---- compile ------------------------------------------------------------------------------------

void declare_compile(Args& args) {
  struct Options {
    int64_t layers = 100, micro_batches = 64, pp = 1, dp = 1, ep = 1;
    bool moe = false, json = false;
  };
  auto o = std::make_shared<Options>();
  args.about("how long building, lowering and checking a large program takes", "");
  args.option("--layers", "N", &o->layers, "of the model");
  args.option("--micro-batches", "N", &o->micro_batches, "of a step");
  args.option("--pp", "N", &o->pp, "pipeline stages");
  args.option("--dp", "N", &o->dp, "data-parallel ranks");
  args.option("--ep", "N", &o->ep, "expert-parallel ranks among them; above 1: with --moe");
  args.flag("--moe", &o->moe, "64 experts, top-8, instead of a dense MLP");
  args.flag("--json", &o->json, "as JSON");
  args.example("hocket bench compile", "100 layers, 64 micro-batches on one rank");
  args.example("hocket bench compile --layers 8 --micro-batches 8 --pp 2 --dp 2 --ep 2 --moe --json",
               "a small mixture of experts on four ranks");
  args.run([o] {
    nlohmann::json model = {{"model_type", o->moe ? "qwen3_moe" : "llama"},
                            {"vocab_size", 32000}, {"hidden_size", 1024},
                            {"intermediate_size", 2816}, {"num_hidden_layers", o->layers},
                            {"num_attention_heads", 16}, {"num_key_value_heads", 4},
                            {"head_dim", 64}, {"rms_norm_eps", 1e-6},
                            {"max_position_embeddings", 4096}, {"tie_word_embeddings", false}};
    if (o->moe)
      model.update({{"num_experts", 64}, {"num_experts_per_tok", 8}, {"norm_topk_prob", true},
                    {"moe_intermediate_size", 512}, {"router_aux_loss_coef", 0.001}});
    const nlohmann::json tree = {
        {"model", {{"config", model}}},
        {"train", {{"global_batch", o->micro_batches * o->dp}, {"seq_len", 1024}}},
        {"plan", {{"pp", o->pp}, {"dp", o->dp}, {"ep", o->ep}}}};
    const engine::Run run = engine::parse_run(tree.dump(), "hocket bench compile", {});
    const int64_t start = now_ns();
    int64_t last = start;
    const double cpu_start = cpu_ms();
    std::vector<std::pair<std::string, double>> rows;
    engine::CompileOptions options;
    options.observe = [&](const std::string& what, const graph::Graph&, const program::Program&) {
      rows.push_back({what == "program" ? "dependencies and memory plan" : what, ms_since(last) * 1e-3});
      last = now_ns();
    };
    const engine::Compiled compiled = engine::compile(run, options);
    last = now_ns();
    const check::Verdict verdict = check::check(compiled.program, compiled.reference);
    rows.push_back({"check", ms_since(last) * 1e-3});
    const double total = ms_since(start) * 1e-3, cpu = (cpu_ms() - cpu_start) * 1e-3;
    int64_t tasks = 0;
    for (const auto& cls : compiled.program.classes) tasks += static_cast<int64_t>(cls.tasks.size());
    if (o->json) {
      nlohmann::ordered_json j = {{"tasks", tasks}, {"nodes", compiled.reference.nodes.size()},
                                  {"ok", verdict.ok()}, {"total_s", total}, {"cpu_s", cpu}};
      for (const auto& [name, seconds] : rows) j["seconds"][name] = seconds;
      fmt::print("{}\n", j.dump());
    } else {
      fmt::print("{} layers, {} micro-batches, pp {} dp {} ep {}: {} graph nodes, {} tasks in {} "
                 "rank classes\n", o->layers, o->micro_batches, o->pp, o->dp, o->ep,
                 compiled.reference.nodes.size(), tasks, compiled.program.classes.size());
      for (const auto& [name, seconds] : rows) fmt::print("  {:<30}{:>8.3f} s\n", name, seconds);
      fmt::print("  {:<30}{:>8.3f} s (CPU {:.3f} s), {}\n", "total", total, cpu,
                 verdict.ok() ? "accepted" : "REFUSED");
    }
    return verdict.ok() ? 0 : 1;
  });
}

// ---- step ---------------------------------------------------------------------------------------

/// A line of /proc/self/status, in MiB.
double status_mib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) / 1024;
  fail_run("hocket bench step", "no {} in /proc/self/status", key);
}

/// Training steps on random tokens, as bench/peer_torch.py does them: Zipf-like, 8 batches in turn.
class StepBench {
 public:
  StepBench(const engine::Run& run, std::shared_ptr<kernels::Backend> backend) : run_(run), stores_(
      static_cast<size_t>(run.plan.world())) {
    engine::Compiled compiled = engine::compile(run);
    train::require_memory(run, compiled.program);
    engine::initialise(compiled.reference, compiled.program, 1, stores_);
    session_ = std::make_unique<engine::Session>(std::move(compiled), std::move(backend), stores_,
                                                 engine::executor_options(run));
    const int64_t v = run.model.vocab_size;
    std::vector<double> sum(static_cast<size_t>(v));
    double all = 0;
    for (int64_t i = 0; i < v; ++i) sum[static_cast<size_t>(i)] = all += 1.0 / static_cast<double>(i + 1);
    Rng rng(7);
    const int64_t length = run.config.train.seq_len + 1, rows = run.config.train.global_batch;
    for (auto& batch : batches_)
      for (int64_t i = 0; i < rows * length; ++i) {
        const double u = rng.uniform() * all;
        batch.push_back(static_cast<int32_t>(std::min<int64_t>(
            v - 1, std::upper_bound(sum.begin(), sum.end(), u) - sum.begin())));
      }
  }

  /// {"ms", "cpu_ms", "loss"}
  nlohmann::json step() {
    const int64_t start = now_ns();
    const double cpu = cpu_ms();
    const auto& ids = batches_[static_cast<size_t>(steps_++ % 8)];
    const engine::TrainSection& t = run_.config.train;
    engine::Batch batch(t.global_batch, t.seq_len);
    for (int64_t r = 0; r < batch.rows; ++r) {
      const data::SequenceOut row = batch.row(r);
      for (int64_t i = 0; i < t.seq_len; ++i) {
        const size_t to = static_cast<size_t>(i);
        const size_t from = static_cast<size_t>(r * (t.seq_len + 1) + i);
        row.tokens[to] = ids[from];
        row.targets[to] = ids[from + 1];
        row.positions[to] = static_cast<int32_t>(i);
      }
    }
    batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
    batch.hyper = engine::Hyper::of(t, t.lr, steps_);
    session_->feed(batch);
    session_->step();
    const double loss = session_->loss();
    return {{"ms", ms_since(start)}, {"cpu_ms", cpu_ms() - cpu}, {"loss", loss}};
  }

 private:
  const engine::Run& run_;
  engine::Stores stores_;
  std::unique_ptr<engine::Session> session_;
  std::vector<int32_t> batches_[8];
  int64_t steps_ = 0;
};

struct StepOptions {
  std::string config;
  std::vector<std::string> set;
  int64_t steps = 10, warmup = 3;
  bool interactive = false, json = false;
};

int bench_step(const StepOptions& o) {
  if (o.steps < 1 || o.warmup < 0) fail("hocket bench step", "--steps and --warmup must be positive");
  auto backend = kernels::cpu_backend();
  const double idle = status_mib("VmRSS");
  // The highest RSS counts from here, not from loading the library.
  std::ofstream("/proc/self/clear_refs") << "5";
  const std::string config = checkpoint::resolve_model(o.config, checkpoint::Need::config).config_file;
  const nlohmann::json tree = {
      {"model", {{"path", config}}},
      {"train", {{"global_batch", 4}, {"seq_len", 512}, {"lr", 3e-4}, {"max_grad_norm", 1.0}}},
      {"plan", {{"micro_batch", 4}, {"threads_per_rank", 2}}}};
  const engine::Run run = engine::parse_run(tree.dump(), "hocket bench step", o.set);
  StepBench bench(run, std::move(backend));
  auto memory = [&] {
    return nlohmann::json{{"rss_mib", status_mib("VmRSS")}, {"peak_mib", status_mib("VmHWM")},
                          {"idle_mib", idle}};
  };
  if (o.interactive) {
    for (std::string line; std::getline(std::cin, line);) {
      const std::string word(trim(line));
      if (word == "quit") break;
      nlohmann::json answer;
      if (word == "step") answer = bench.step();
      else if (word == "memory") answer = memory();
      else if (!word.empty())
        answer = {{"error", "unknown command " + quote(word) + "; expected step, memory or quit"}};
      else continue;
      fmt::print("{}\n", answer.dump());
      std::fflush(stdout);
    }
    return 0;
  }
  std::vector<double> ms, cpu;
  double loss = 0;
  for (int64_t i = 0; i < o.warmup + o.steps; ++i) {
    const nlohmann::json a = bench.step();
    if (i < o.warmup) continue;
    ms.push_back(a["ms"]);
    cpu.push_back(a["cpu_ms"]);
    loss = a["loss"];
    if (!o.json) fmt::print("step {:3}  {:8.1f} ms  loss {:.4f}\n", i - o.warmup, ms.back(), loss);
    std::fflush(stdout);
  }
  const double tokens = static_cast<double>(run.config.train.global_batch * run.config.train.seq_len);
  nlohmann::json result = memory();
  result.update({{"median_ms", median(ms)}, {"cpu_ms", median(cpu)}, {"step_ms", ms}, {"loss", loss},
                 {"tokens_per_s", tokens / median(ms) * 1e3}});
  const double above = result["peak_mib"].get<double>() - idle;
  result["peak_above_idle_mib"] = above;
  if (o.json) fmt::print("{}\n", result.dump());
  else
    fmt::print("median {:.1f} ms (CPU {:.0f} ms), {:.0f} tokens/s, peak {:.0f} MiB above idle\n",
               median(ms), median(cpu), tokens / median(ms) * 1e3, above);
  return 0;
}

void declare_step(Args& args) {
  auto o = std::make_shared<StepOptions>();
  args.about("a training step on random tokens: the opposite side of bench/peer_torch.py",
             "4 sequences of 512 tokens in one micro-batch, fp32, 2 threads, AdamW, clipping at 1. "
             "With --interactive it answers lines on standard input: `step` trains one step and "
             "prints {\"ms\", \"cpu_ms\", \"loss\"}; `memory` prints {\"rss_mib\", \"peak_mib\", "
             "\"idle_mib\"}, idle being the process before it compiles anything; `quit`.");
  args.option("--config", "MODEL", &o->config, "a config.json or its folder");
  add_set(args, &o->set);
  args.flag("--interactive", &o->interactive, "answer lines (bench/compare_peer.py)");
  args.option("--steps", "N", &o->steps, "timed steps");
  args.option("--warmup", "N", &o->warmup, "steps before them");
  args.flag("--json", &o->json, "as JSON");
  args.example("hocket bench step --config configs/models/quickstart --steps 5",
               "time of a step, tokens/s, peak memory");
  args.example("echo step | hocket bench step --config configs/models/quickstart --interactive",
               "the line protocol");
  args.run([o] {
    if (o->config.empty()) fail("hocket bench step", "--config is missing; try --config configs/models/dense-26m");
    return bench_step(*o);
  });
}

}  // namespace

void verb_bench(Args& args) {
  args.about("measure parts of this program on this machine", "");
  declare_step(args.sub("step"));
  declare_executor(args.sub("executor"));
  declare_compile(args.sub("compile"));
  args.example("hocket bench executor", "what the executor adds to a task");
  args.example("hocket bench compile", "building and checking 100 layers x 64 micro-batches");
}

}  // namespace hocket::cli

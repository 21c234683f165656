// SPDX-License-Identifier: Apache-2.0
// hocket bench compile: how long it takes to build, lower and check a large program.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "check/check.h"
#include "cli/apps/bench.h"
#include "run/compile.h"
#include "run/config.h"

namespace hocket::cli {
namespace {

struct BenchCompileOptions {
  int64_t layers = 100, micro_batches = 64, pp = 1, dp = 1, ep = 1;
  bool moe = false, json = false;
};

/// The run that is compiled, as the text of a run.yaml.
std::string large_run(const BenchCompileOptions& options) {
  JsonWriter json;
  json.object().key("model").object().key("config").object();
  json.member("model_type", options.moe ? "qwen3_moe" : "llama").member("vocab_size", 32000);
  json.member("hidden_size", 1024).member("intermediate_size", 2816);
  json.member("num_hidden_layers", options.layers).member("num_attention_heads", 16);
  json.member("num_key_value_heads", 4).member("head_dim", 64).member("rms_norm_eps", 1e-6);
  json.member("max_position_embeddings", 4096).member("tie_word_embeddings", false);
  if (options.moe) {
    json.member("num_experts", 64).member("num_experts_per_tok", 8).member("norm_topk_prob", true);
    json.member("moe_intermediate_size", 512).member("router_aux_loss_coef", 0.001);
  }
  json.end().end();
  json.key("train")
      .object()
      .member("global_batch", options.micro_batches * options.dp)
      .member("seq_len", 1024)
      .end();
  json.key("plan")
      .object()
      .member("pp", options.pp)
      .member("dp", options.dp)
      .member("ep", options.ep)
      .end()
      .end();
  return json.take();
}

struct Times {
  std::vector<std::pair<std::string, double>> stages;  ///< in seconds
  double total_s = 0, cpu_s = 0;
};

/// Prints the size of the program, and the time of each stage in order.
void print_times(const BenchCompileOptions& options, const engine::Compiled& compiled,
                 const Times& times, bool accepted) {
  int64_t tasks = 0;
  for (const auto& cls : compiled.program.classes) {
    tasks += static_cast<int64_t>(cls.tasks.size());
  }
  if (options.json) {
    JsonWriter json;
    json.object().member("tasks", tasks).member("nodes", compiled.reference.nodes.size());
    json.member("ok", accepted).member("total_s", times.total_s).member("cpu_s", times.cpu_s);
    json.key("seconds").object();
    for (const auto& [name, seconds] : times.stages) {
      json.member(name, seconds);
    }
    json.end().end();
    fmt::print("{}\n", json.take());
  } else {
    fmt::print(
        "{} layers, {} micro-batches, pp {} dp {} ep {}: {} graph nodes, {} tasks in {} "
        "rank classes\n",
        options.layers, options.micro_batches, options.pp, options.dp, options.ep,
        compiled.reference.nodes.size(), tasks, compiled.program.classes.size());
    for (const auto& [name, seconds] : times.stages) {
      fmt::print("  {:<30}{:>8.3f} s\n", name, seconds);
    }
    fmt::print("  {:<30}{:>8.3f} s (CPU {:.3f} s), {}\n", "total", times.total_s, times.cpu_s,
               accepted ? "accepted" : "REFUSED");
  }
}

/// Builds and proves a program of the given size, and reports the time of each stage. `observe` is
/// called after each stage; the time since the last call is the stage's.
int bench_compile(const BenchCompileOptions& options) {
  const engine::Run run = engine::parse_run(large_run(options), "hocket bench compile", {});
  const int64_t start = now_ns();
  int64_t last = start;
  const double cpu_start = cpu_ms();
  Times times;
  engine::ProgramSpec spec = engine::training(run);
  spec.lowering.observe = [&](const std::string& what, const engine::Progress&) {
    times.stages.push_back(
        {what == "program" ? "dependencies and memory plan" : what, ms_since(last) * 1e-3});
    last = now_ns();
  };
  const engine::Compiled compiled = engine::compile(spec);
  last = now_ns();
  const check::Verdict verdict = check::check(compiled.program, compiled.reference);
  times.stages.push_back({"check", ms_since(last) * 1e-3});
  times.total_s = ms_since(start) * 1e-3;
  times.cpu_s = (cpu_ms() - cpu_start) * 1e-3;
  print_times(options, compiled, times, verdict.ok());
  return verdict.ok() ? 0 : 1;
}

}  // namespace

void declare_bench_compile(Args& args) {
  auto options = std::make_shared<BenchCompileOptions>();
  args.about("how long building, lowering and checking a large program takes", "");
  args.option("--layers", "N", &options->layers, "layers of the model");
  args.option("--micro-batches", "N", &options->micro_batches, "micro-batches of a step");
  args.option("--pp", "N", &options->pp, "pipeline stages");
  args.option("--dp", "N", &options->dp, "data-parallel ranks");
  args.option("--ep", "N", &options->ep,
              "expert-parallel ranks among the data-parallel ones; above 1 only with --moe");
  args.flag("--moe", &options->moe, "use 64 experts, top-8, in place of a dense MLP");
  args.flag("--json", &options->json, "print the result as JSON");
  args.example("hocket bench compile", "100 layers, 64 micro-batches on one rank");
  args.example(
      "hocket bench compile --layers 8 --micro-batches 8 --pp 2 --dp 2 --ep 2 --moe --json",
      "a small mixture of experts on four ranks");
  args.run([options] { return bench_compile(*options); });
}

}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
// hocket bench compile: how long it takes to build, lower and check a large program.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "check/check.h"
#include "cli/bench.h"
#include "engine/compile.h"
#include "engine/config.h"

namespace hocket::cli {
namespace {

struct Options {
  int64_t layers = 100, micro_batches = 64, pp = 1, dp = 1, ep = 1;
  bool moe = false, json = false;
};

/// The run that is compiled, as the text of a run.yaml.
std::string large_run(const Options& o) {
  JsonWriter json;
  json.object().key("model").object().key("config").object();
  json.member("model_type", o.moe ? "qwen3_moe" : "llama").member("vocab_size", 32000);
  json.member("hidden_size", 1024).member("intermediate_size", 2816);
  json.member("num_hidden_layers", o.layers).member("num_attention_heads", 16);
  json.member("num_key_value_heads", 4).member("head_dim", 64).member("rms_norm_eps", 1e-6);
  json.member("max_position_embeddings", 4096).member("tie_word_embeddings", false);
  if (o.moe) {
    json.member("num_experts", 64).member("num_experts_per_tok", 8).member("norm_topk_prob", true);
    json.member("moe_intermediate_size", 512).member("router_aux_loss_coef", 0.001);
  }
  json.end().end();
  json.key("train")
      .object()
      .member("global_batch", o.micro_batches * o.dp)
      .member("seq_len", 1024)
      .end();
  json.key("plan").object().member("pp", o.pp).member("dp", o.dp).member("ep", o.ep).end().end();
  return json.take();
}

}  // namespace

void declare_bench_compile(Args& args) {
  // Builds and proves a program of the size that is asked for and reports every stage by its own
  // time: `observe` is called after each, and what has passed since the last call is its share.
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
  args.example(
      "hocket bench compile --layers 8 --micro-batches 8 --pp 2 --dp 2 --ep 2 --moe --json",
      "a small mixture of experts on four ranks");
  args.run([o] {
    const engine::Run run = engine::parse_run(large_run(*o), "hocket bench compile", {});
    const int64_t start = now_ns();
    int64_t last = start;
    const double cpu_start = cpu_ms();
    std::vector<std::pair<std::string, double>> rows;
    engine::CompileOptions options;
    options.observe = [&](const std::string& what, const graph::Graph&, const program::Program&) {
      rows.push_back(
          {what == "program" ? "dependencies and memory plan" : what, ms_since(last) * 1e-3});
      last = now_ns();
    };
    const engine::Compiled compiled = engine::compile(run, options);
    last = now_ns();
    const check::Verdict verdict = check::check(compiled.program, compiled.reference);
    rows.push_back({"check", ms_since(last) * 1e-3});
    const double total = ms_since(start) * 1e-3, cpu = (cpu_ms() - cpu_start) * 1e-3;
    int64_t tasks = 0;
    for (const auto& cls : compiled.program.classes) {
      tasks += static_cast<int64_t>(cls.tasks.size());
    }
    if (o->json) {
      JsonWriter json;
      json.object().member("tasks", tasks).member("nodes", compiled.reference.nodes.size());
      json.member("ok", verdict.ok()).member("total_s", total).member("cpu_s", cpu);
      json.key("seconds").object();
      for (const auto& [name, seconds] : rows) {
        json.member(name, seconds);
      }
      json.end().end();
      fmt::print("{}\n", json.take());
    } else {
      fmt::print(
          "{} layers, {} micro-batches, pp {} dp {} ep {}: {} graph nodes, {} tasks in {} "
          "rank classes\n",
          o->layers, o->micro_batches, o->pp, o->dp, o->ep, compiled.reference.nodes.size(), tasks,
          compiled.program.classes.size());
      for (const auto& [name, seconds] : rows) {
        fmt::print("  {:<30}{:>8.3f} s\n", name, seconds);
      }
      fmt::print("  {:<30}{:>8.3f} s (CPU {:.3f} s), {}\n", "total", total, cpu,
                 verdict.ok() ? "accepted" : "REFUSED");
    }
    return verdict.ok() ? 0 : 1;
  });
}

}  // namespace hocket::cli

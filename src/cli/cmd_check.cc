// SPDX-License-Identifier: Apache-2.0
// hocket check
#include <fmt/core.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/id.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/units.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "cost/cluster.h"
#include "cost/cost_model.h"
#include "run/describe.h"

namespace hocket::cli {
namespace {

const char* name_of(check::Localisation localisation) {
  constexpr const char* kNames[] = {"accepted", "exact", "near", "missed"};
  return kNames[place_of(localisation)];
}

/// Injects `count` random faults, one at a time, and prints the check's verdict on each.
int mutants(const engine::Compiled& compiled, const check::CheckOptions& options, int64_t count,
            int64_t seed, bool json) {
  check::Checker checker(compiled.reference, compiled.program.num_micro_batches);
  if (const check::Verdict verdict = checker.check(compiled.program, options); !verdict.ok()) {
    fail("hocket check", "the program itself is refused; expected a good one to change\n{}",
         check::to_text(verdict));
  }
  JsonWriter list({.indent = 2});
  list.object().key("mutants").array();
  std::map<std::string, std::map<std::string, int64_t>> table;
  std::map<std::string, int64_t> total;
  for (int64_t i = 0; i < count; ++i) {
    program::Program mutant = compiled.program;
    check::Mutation mutation;
    const auto mutant_seed = static_cast<uint64_t>(seed + i);
    if (!check::mutate(mutant, mutant_seed, &mutation)) continue;
    const check::Verdict verdict = checker.check(mutant, options);
    const std::string outcome = name_of(check::localise(mutation, verdict));
    ++table[mutation.kind][outcome];
    ++total[outcome];
    const std::string said = verdict.ok() ? "" : verdict.problems[0].text;
    if (json) {
      list.object()
          .member("seed", mutant_seed)
          .member("kind", mutation.kind)
          .member("change", mutation.text);
      list.member("verdict", outcome).member("said", said).end();
    } else if (outcome == "accepted" || outcome == "missed") {
      fmt::print("seed {}: {}, {}: {}{}\n", mutant_seed, outcome, mutation.kind, mutation.text,
                 said.empty() ? "" : "\n  said: " + said);
    }
  }
  if (json) {
    list.end().key("total").object();
    for (const auto& [outcome, number] : total) {
      list.member(outcome, number);
    }
    list.end().end();
    fmt::print("{}\n", list.take());
    return 0;
  }
  fmt::print("{:<24}{:>8}{:>8}{:>8}{:>10}\n", "fault", "exact", "near", "missed", "accepted");
  for (auto& [kind, row] : table) {
    fmt::print("{:<24}{:>8}{:>8}{:>8}{:>10}\n", kind, row["exact"], row["near"], row["missed"],
               row["accepted"]);
  }
  fmt::print("{:<24}{:>8}{:>8}{:>8}{:>10}\n", "all", total["exact"], total["near"], total["missed"],
             total["accepted"]);
  fmt::print(
      "exact: the first problem names the changed task; near: one directly connected to it;\n"
      "accepted: the change is harmless, or the check has a hole\n");
  return 0;
}

/// Returns the memory limit of a rank: --memory-budget, else cluster.memory_budget, and at most the
/// memory of the devices of cluster.file; also the devices of a node. `evaluation` is an evaluation
/// program beside the run's, or null.
check::CheckOptions limits_of(const engine::Run& run, const std::string& budget,
                              const program::Program* evaluation) {
  check::CheckOptions options;
  const engine::ClusterSection& cluster = run.config.cluster;
  if (!budget.empty()) {
    options.budget_from = "--memory-budget";
    const double bytes = parse_quantity(budget, Unit::bytes, "hocket check --memory-budget");
    if (!(bytes >= 1 && bytes <= engine::kMaxMemory)) {
      fail("hocket check", "--memory-budget is {}; expected 1 byte to 1 EiB", quote(budget));
    }
    options.memory_budget = static_cast<int64_t>(bytes);
  } else if (cluster.memory_budget) {
    options.budget_from = "cluster.memory_budget";
    options.memory_budget = static_cast<int64_t>(*cluster.memory_budget);
  }
  if (!cluster.file.empty()) {
    const cost::Cluster spec = cost::read_cluster(cluster.file);
    options.devices_per_node = spec.devices_per_node;
    options.kernels = cost::kernels_of(spec);
    const auto device = static_cast<int64_t>(spec.device.plannable());
    if (device > 0 && (options.memory_budget == 0 || device < options.memory_budget)) {
      options.budget_from = "device.memory, less its reserve, of " + cluster.file;
      options.memory_budget = device;
    }
  }
  options.evaluation = evaluation;
  return options;
}

struct CheckVerbOptions {
  std::string run, cluster, budget, certificate;
  std::vector<std::string> set;
  std::string purpose;  ///< as --for has it
  bool json = false;
  int64_t mutants = 0, seed = 1;
};

/// Returns a line with the bytes that activations and gradients move through a rank's link, if a
/// global choice of layouts changes them; else "".
std::string saved_by_layouts(const engine::Compiled& compiled) {
  if (!compiled.layouts_saved) return "";
  const parallel::LayoutCost& cost = compiled.layouts_saved->chosen;
  const parallel::LayoutCost& before = compiled.layouts_saved->by_node;
  return fmt::format(
      "layouts  {} a micro-batch and {} a step through a rank's link; chosen node by node {} and "
      "{}\n",
      human_bytes(cost.bytes_per_micro_batch), human_bytes(cost.bytes_per_step),
      human_bytes(before.bytes_per_micro_batch), human_bytes(before.bytes_per_step));
}

/// The program that `train` would run, against the graph of a single device, and that of the
/// evaluation beside it; exit code 2 if one is refused.
int check_run(const CheckVerbOptions& options) {
  std::vector<std::string> set = options.set;
  if (!options.cluster.empty()) {
    set.push_back("cluster.file=" + nlohmann::json(options.cluster).dump());
  }
  const Source source = read_source(options.run, set, true);
  warn_if_long(source.run.model, source.run.config.train.seq_len, "train.seq_len");
  const bool other = !options.purpose.empty() && options.purpose != "train";
  if (other && source.parsed_program) {
    fail(options.run, "it is the text of one program; expected a run or a model for --for");
  }
  const std::optional<engine::Compiled> evaluation = other ? std::nullopt : source.evaluation();
  const check::CheckOptions limits =
      limits_of(source.run, options.budget, evaluation ? &evaluation->program : nullptr);
  const engine::Compiled compiled =
      other ? engine::compile(engine::spec_named(source.run, options.purpose, "hocket check --for"))
            : source.compile();
  if (options.mutants > 0)
    return mutants(compiled, limits, options.mutants, options.seed, options.json);
  const check::Verdict verdict = check::check(compiled.program, compiled.reference, limits);
  if (!options.certificate.empty()) {
    const check::Certificate certified = check::read_certificate(options.certificate);
    const std::string differences = check::differences(certified, verdict.certificate);
    if (!differences.empty())
      fail(options.certificate, "is not about {}: other is {}", options.run, differences);
  }
  std::optional<check::Verdict> beside;
  if (evaluation) {
    beside = check::check(evaluation->program, evaluation->reference);
  }
  if (options.json) {
    fmt::print("{}\n", check::to_json(verdict, beside ? &*beside : nullptr));
  } else {
    fmt::print("model    {}\nplan     {}\n{}{}", engine::describe(source.run.model),
               engine::describe(source.run), saved_by_layouts(compiled), check::to_text(verdict));
    if (beside) {
      // One line if it is good: its memory is in the figures above.
      const std::string text = check::to_text(*beside);
      fmt::print("evaluation {}", beside->ok() ? text.substr(0, text.find('\n') + 1) : text);
    }
  }
  return verdict.ok() && (!beside || beside->ok()) ? 0 : 2;
}

}  // namespace

void verb_check(Args& args) {
  // Declares options and help; check_run() does the work.
  auto options = std::make_shared<CheckVerbOptions>();
  args.about("prove that a run's program is right, before it costs anything",
             "Shapes and layouts agree; every collective is seen by all members of its group "
             "in one order; sends are matched; nothing can deadlock or race; memory is "
             "enough; and the program computes the single-device graph. A refusal names the "
             "task, the ranks, the reason and the remedy, and ends with exit code 2. If data "
             "is held out, the program that evaluates is checked, too. Needs only a "
             "config.json: no weights, no data. docs/check.md lists the rules.");
  args.positional(
      "RUN", &options->run,
      "a run.yaml, the text of a program, or a MODEL (its config.json with a plan of one "
      "rank, see --set)");
  add_set(args, &options->set);
  args.option("--cluster", "FILE", &options->cluster,
              "cluster file (configs/clusters) with the memory of a rank's device; default: "
              "cluster.file");
  args.option("--for", "PURPOSE", &options->purpose,
              "program of the run to check: train (the default), evaluate, gradients, logits, "
              "logprobs or generate; its assumptions say what it takes from the host");
  args.flag("--json", &options->json,
            "print the certificate: proved properties with their rules, and the hashes of the "
            "program, the single-device graph and the mesh");
  args.option("--certificate", "FILE", &options->certificate,
              "certificate, or run.json of a checkpoint: refuse unless it is about this very "
              "program, graph and mesh");
  args.option(
      "--memory-budget", "BYTES", &options->budget,
      "memory of a rank, e.g. 80GiB; default: cluster.memory_budget. Never more than the devices "
      "of the cluster file have");
  args.option("--mutate", "N", &options->mutants,
              "put one random fault into the program, N times, in place of the check, and print "
              "which are refused",
              1, 1'000'000);
  args.option("--seed", "S", &options->seed, "seed of the first fault");
  args.example(
      "hocket check configs/quickstart.yaml --set plan.dp=2 --set plan.ep=2 "
      "--set plan.micro_batch=2",
      "two data-parallel ranks that share the experts");
  args.example("hocket check configs/qwen3-30b-a3b.yaml --memory-budget 80GiB",
               "a 30 B mixture of experts on 512 ranks");
  args.example("hocket check configs/quickstart.yaml --mutate 20", "does it notice faults?");
  args.run([options] { return check_run(*options); });
}

}  // namespace hocket::cli

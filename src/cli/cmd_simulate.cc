// SPDX-License-Identifier: Apache-2.0
// hocket simulate
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "check/check.h"
#include "cli/analysis/simulate_op.h"
#include "cli/inputs.h"
#include "cli/simulate_page.h"
#include "cli/simulate_schedule.h"
#include "cli/verbs.h"
#include "cost/cluster.h"
#include "cost/flops.h"
#include "cost/profile.h"
#include "program/parts.h"
#include "run/describe.h"
#include "run/ineffective_keys.h"
#include "run/machine.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"
#include "sim/simulator.h"

namespace hocket::cli {

namespace {

struct SimulateOptions {
  std::string run, cluster, profile, trace, html;
  std::optional<double> price;
  std::vector<std::string> set, what_if;
  bool all_ranks = false, json = false;
};

/// Parses the OP=K words of --what-if.
std::vector<sim::Speedup> speedups(const std::vector<std::string>& words) {
  constexpr double kMaxSpeedup = 1e9;
  std::vector<sim::Speedup> list;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    sim::Speedup speedup{word.substr(0, equals)};
    const std::string number = equals == std::string::npos ? "" : word.substr(equals + 1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), speedup.times);
    if (error != std::errc() || end != number.data() + number.size() ||
        !(speedup.times >= 1 / kMaxSpeedup && speedup.times <= kMaxSpeedup)) {
      fail("hocket simulate --what-if",
           "got '{}'; expected OP=K, an op and its speedup, as in all_reduce=2, K from 1e-9 "
           "to 1e9",
           word);
    }
    list.push_back(speedup);
  }
  return list;
}

sim::SimOptions sim_options_of(const Source& source, const engine::Compiled& compiled,
                               program::Kernels kernels, bool all_ranks, double price) {
  sim::SimOptions options;
  options.all_ranks = all_ranks;
  options.tokens = compiled.tokens_per_step;
  options.price = price;
  if (const std::optional<engine::Compiled> evaluation = source.evaluation()) {
    options.memory = program::memory_with(compiled.program, &evaluation->program, kernels);
  }
  const cost::ModelFlops flops = cost::model_flops(compiled.reference);
  const bool trains = !compiled.reference.grads.empty();
  options.model_flops = (trains ? flops.training() : flops.forward()) *
                        static_cast<double>(compiled.program.num_micro_batches);
  return options;
}

/// Checks a program that was read from a text. Throws Error if the check refuses it, since its
/// simulated time would mean nothing. Warns if only its memory plan is wrong; it needs none.
void expect_sound(const std::string& path, const program::Program& program) {
  check::CheckOptions options;
  options.allow_unplanned = true;
  const check::Verdict verdict = check::check_structure(program, options);
  if (verdict.ok()) return;
  const auto worst = std::find_if(verdict.problems.begin(), verdict.problems.end(),
                                  [](const check::Problem& problem) {
                                    return problem.problem_class != check::ProblemClass::memory;
                                  });
  const bool only_memory = worst == verdict.problems.end();
  const check::Problem& shown = only_memory ? verdict.problems.at(0) : *worst;
  const std::string what =
      fmt::format("the check refuses the program: {}, one is [{}] {}; try hocket check {}",
                  counted(verdict.num_problems, "problem"), shown.rule, shown.text, path);
  if (only_memory) {
    log_warning("{}: {}", path, what);
    return;
  }
  fail(path, "{}, or, if it is not finished, hocket graph --finish {}", what, path);
}

/// Returns the report with the run's warnings, which also go to standard error.
sim::SimReport with_warnings(sim::SimReport report, const engine::Run& run) {
  std::vector<std::string> warnings = engine::ineffective_keys(run);
  warnings.push_back(long_text(run.model, run.config.train.seq_len, "train.seq_len"));
  std::erase(warnings, "");
  report.notes.insert(report.notes.end(), warnings.begin(), warnings.end());
  return report;
}

/// Compiles the program that `train` would run, and replays it with the costs of its tasks on the
/// cluster. Messages go to standard error if the trace or the page takes standard output.
int simulate(const SimulateOptions& options) {
  if (options.json && options.trace == "-") {
    fail("hocket simulate", "--json and --trace - both go to standard output; expected one there");
  }
  if (options.price.value_or(1) <= 0) {
    fail("hocket simulate", "--price is {:g}; expected more than 0 US dollars", *options.price);
  }
  if (options.html == "-" && (options.json || options.trace == "-")) {
    fail("hocket simulate", "--html - and {} both go to standard output; expected one there",
         options.trace == "-" ? "--trace -" : "--json");
  }
  const Source source = read_source(options.run, options.set, true);
  const engine::Run& run = source.run;
  const PredictionBasis basis =
      prediction_basis(run, {.verb = "hocket simulate",
                             .source = options.run,
                             .cluster = options.cluster,
                             .profile = options.profile,
                             .outputs = {{"--trace", options.trace}, {"--html", options.html}}});
  warn_if_long(run.model, run.config.train.seq_len, "train.seq_len");
  const engine::Compiled compiled = source.compile();
  if (source.parsed_program) {
    program::expect_no_parts(compiled.program, "hocket simulate");
    expect_sound(options.run, compiled.program);
  }
  const cost::CostModel costs(basis.cluster, basis.profile,
                              sim::threads_per_rank(compiled.program, basis.cluster),
                              engine::collectives_of(run));
  sim::Replay replay;
  sim::SimOptions sim_options = sim_options_of(source, compiled, cost::kernels_of(basis.cluster),
                                               options.all_ranks, options.price.value_or(0));
  sim_options.what_if = speedups(options.what_if);
  sim_options.memory_budget = static_cast<int64_t>(run.config.cluster.memory_budget.value_or(0));
  const sim::SimReport report = sim::simulate(compiled.program, costs, sim_options, &replay);
  if (!options.trace.empty()) {
    trace::write_trace(sim::to_trace(compiled.program, replay), options.trace);
  }
  if (!options.html.empty()) {
    emit(options.html, simulate_page(run, compiled, with_warnings(report, run), replay));
  }
  if (options.json) {
    fmt::print("{}\n", sim::to_json(compiled.program, with_warnings(report, run)));
    return 0;
  }
  std::FILE* messages = message_stream(options.trace == "-" ? options.trace : options.html);
  fmt::print(messages, "model    {}\nplan     {}\n{}", engine::describe(run.model),
             engine::describe(run), sim::to_text(compiled.program, report));
  if (!options.trace.empty()) {
    fmt::print(messages, "wrote {}\n", options.trace);
  }
  if (!options.html.empty() && options.html != "-") {
    fmt::print(messages, "wrote {}\n", options.html);
  }
  return 0;
}

}  // namespace

void verb_simulate(Args& args) {
  auto options = std::make_shared<SimulateOptions>();
  args.about("predict a step's time and memory on any cluster, real or imagined",
             "Replays the very tasks that `train` would run in a discrete-event simulation: "
             "step time, where each rank's time goes, memory, MFU, the critical path. "
             "Durations come from a profile of this machine (`hocket profile`) where it has "
             "them, and otherwise from a roofline over the cluster file's constants: a "
             "prediction without a profile is marked uncalibrated. Needs only a config.json. "
             "docs/simulate.md gives the model and its limits.");
  args.positional("RUN", &options->run,
                  "a run.yaml, the text of a program, or a MODEL (its config.json: sequences of "
                  "4,096 tokens on one rank, see --set)");
  add_set(args, &options->set);
  add_prediction_basis(args, &options->cluster, &options->profile);
  args.option("--trace", "FILE", &options->trace,
              "write the timeline, for Perfetto (.json or .json.gz; -: standard output)");
  args.option(
      "--html", "FILE", &options->html,
      "write a page with the timeline, time by rank and by kind, memory (-: standard output)");
  args.option("--price", "USD", &options->price,
              "US dollars per device and hour, for the cost per million tokens; default: "
              "device.price of the cluster file");
  args.flag("--all-ranks", &options->all_ranks,
            "replay every rank, also where one of its class would do");
  args.option("--what-if", "OP=K", &options->what_if,
              "predict also the step if all tasks of an op, or all of compute or communication, "
              "were K times faster; may be given several times");
  args.flag("--json", &options->json, "print the prediction as JSON: seconds, bytes");
  args.replaced("--schedule", "hocket simulate schedule NAME");
  args.replaced("--op", "hocket simulate op NAME --bytes SIZES");
  args.example(
      "hocket simulate configs/qwen3-30b-a3b.yaml --cluster configs/clusters/h100-64x8.yaml",
      "a 30 B mixture of experts on 512 H100");
  args.example("hocket simulate configs/models/dense-26m --set plan.dp=2 --trace step.json.gz",
               "any config.json, on this machine; the timeline opens in ui.perfetto.dev");
  args.example("hocket simulate configs/models/dense-26m --html step.html --price 1.5",
               "the same as a page, with the cost of a million tokens");
  args.run([options] { return simulate(*options); });
  declare_simulate_schedule(args.sub("schedule"));
#ifndef HOCKET_NO_ANALYSIS
  declare_simulate_op(args.sub("op"));
#endif
}

}  // namespace hocket::cli

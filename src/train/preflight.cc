// SPDX-License-Identifier: Apache-2.0
#include "train/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cost/flops.h"
#include "engine/emulate.h"
#include "engine/weights.h"
#include "models/build.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"
#include "train/sample.h"

namespace hocket::train {

namespace {

/// Prints a line and flushes.
void print_row(const char* name, const std::string& what) {
  fmt::print("{:<9}{}\n", name, what);
  std::fflush(stdout);
}

/// Computes sizes of the model and its step, and prints model, weights, data and plan.
void describe(const engine::Run& run, const engine::Compiled& compiled, const TrainingData& data,
              const std::string& weights, Prediction& result) {
  result.params = models::param_count(compiled.reference);
  result.active_params = models::active_param_count(compiled.reference);
  result.model_flops = cost::model_flops(compiled.reference).training() *
                       static_cast<double>(compiled.program.num_micro_batches);
  print_row("model", engine::describe(run.model));
  print_row("",
            fmt::format("{:.2f} M parameters ({:.2f} M active), {}",
                        static_cast<double>(result.params) / 1e6,
                        static_cast<double>(result.active_params) / 1e6, run.config.model.dtype));
  print_row("weights", weights);
  print_row("data", fmt::format("{}: {}; held out {}", data.name(), data.training_text(),
                                data.held_out_text()));
  for (const std::string& note : data.notes()) {
    print_row("", note);
  }
  print_row("plan", engine::describe(run));
  if (run.config.emulate.on()) {
    print_row("device", engine::emulation_text(run));
  }
}

/// Returns one line about a verdict. Throws Error, with the whole verdict, if the check refuses
/// `what`.
std::string summary_of(const engine::Run& run, const char* what, const check::Verdict& verdict) {
  if (!verdict.ok()) fail(run.name, "the static check refuses the {}:\n{}", what, to_text(verdict));
  return fmt::format(
      "{} tasks, {} buffers, {} messages and {} collectives: {}, no deadlock, no race ({})",
      verdict.num_tasks, verdict.num_buffers, verdict.num_messages, verdict.num_collectives,
      equality_text(verdict), human_time(verdict.seconds));
}

/// Simulates the step of `program` by these costs, with its timeline.
void simulate(const program::Program& program, int64_t tokens, const cost::CostModel& costs,
              Prediction& result) {
  sim::SimOptions options;
  options.model_flops = result.model_flops;
  options.tokens = tokens;
  options.memory = result.memory;
  sim::Replay replay;
  result.report = sim::simulate(program, costs, options, &replay);
  result.trace = sim::to_trace(program, replay);
  result.step_s = static_cast<double>(result.report.step_ns) * 1e-9;
  result.provenance = sim::provenance_text(result.report);
}

/// Simulates the emulated run's step on the cluster that it is emulated on.
void simulate_played(const engine::Run& run, const engine::Compiled& compiled, Prediction& result) {
  simulate(engine::compile(engine::emulated_run(run)).program, compiled.tokens_per_step,
           engine::emulated_costs(run), result);
}

/// Returns how often tasks and links are timed: a short run does not wait for its prediction.
int max_repeats(const engine::TrainSection& train) {
  constexpr int kMaxRepeats = std::numeric_limits<int>::max();
  const int64_t steps = train.num_steps();
  return steps == 0 ? kMaxRepeats : static_cast<int>(std::min<int64_t>(kMaxRepeats, steps));
}

/// Simulates the step from timings of its own tasks on this machine.
void simulate(const engine::Run& run, const engine::Compiled& compiled,
              const std::shared_ptr<kernels::Backend>& backend,
              const std::map<std::string, cost::TimedLink>& links, Prediction& result) {
  Progress progress;
  ProfileOptions profile_options;
  profile_options.links = links;
  profile_options.max_repeats = max_repeats(run.config.train);
  profile_options.progress = [&](const std::string& text) { progress.update(text); };
  const cost::Profile profile = profile_for(run, compiled, backend, profile_options);
  progress.finish();
  const auto peak = profile.peak_flops.find(run.config.model.dtype);
  if (peak != profile.peak_flops.end()) {
    result.peak_flops = peak->second;
  }
  result.memory_bandwidth = profile.memory_bytes_per_s;
  result.probe_flops = profile.probe_flops;
  const cost::CostModel costs(engine::local_cluster(run), profile,
                              engine::threads_per_rank(run.plan), engine::collectives_of(run));
  simulate(compiled.program, compiled.tokens_per_step, costs, result);
}

/// Returns why no samples are drawn, or "". If one process lacks the memory, none draws.
std::string why_no_sample(const engine::Run& run, const engine::Compiled& compiled,
                          const TrainingData& data, const Prediction& result,
                          comm::Processes& processes) {
  if (run.config.output.sample_tokens == 0) return "output.sample_tokens is 0";
  std::string why;
  std::vector<int64_t> bytes;
  try {
    bytes = sample_memory(run, compiled, data);
    why = engine::why_too_large(run, bytes);
  } catch (const Error& error) {
    why = error.what();
  }
  for (const std::string& of : processes.all_gather(why)) {
    why = why.empty() ? of : why;
  }
  if (!why.empty()) {
    print_row("", "no samples: " + why);
    return why;
  }
  int64_t until_then = 0;
  for (size_t c = 0; c < result.memory.size(); ++c) {
    until_then += compiled.program.num_ranks(program::ClassId(c)) * result.memory[c].total();
  }
  const int64_t sample = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  if (sample > until_then) {
    print_row("", fmt::format("{} planned in all while the sample is drawn, {} until then",
                              human_bytes(static_cast<double>(sample)),
                              human_bytes(static_cast<double>(until_then))));
  }
  return "";
}

void print_memory(const Prediction& result) {
  const program::Memory& fullest = *std::max_element(
      result.memory.begin(), result.memory.end(),
      [](const program::Memory& a, const program::Memory& b) { return a.total() < b.total(); });
  fmt::print("memory   {} planned per rank ({})\n",
             human_bytes(static_cast<double>(fullest.total())), program::parts_text(fullest));
}

void print_prediction(const Prediction& result) {
  fmt::print("predicted  {} per step, {:.0f} tokens/s\n", human_time(result.step_s),
             result.report.tokens_per_s);
  if (const std::string interval = sim::interval_text(result.report); !interval.empty()) {
    fmt::print("           interval: {}\n", interval);
  }
  fmt::print(
      "           {}\n{}not modelled: host work, changing routing, packets, ... "
      "(hocket simulate lists all)\n",
      result.provenance, sim::path_text(result.report));
  std::fflush(stdout);
}

}  // namespace

void prove(const engine::Run& run, const engine::Compiled& compiled,
           const engine::Compiled* evaluation, Prediction& result) {
  check::CheckOptions options;
  options.evaluation = evaluation ? &evaluation->program : nullptr;
  if (run.config.cluster.memory_budget) {
    options.memory_budget = static_cast<int64_t>(*run.config.cluster.memory_budget);
    options.budget_from = "cluster.memory_budget";
  }
  const check::Verdict verdict = check::check(compiled.program, compiled.reference, options);
  result.certificate = verdict.certificate;
  result.check_summary = summary_of(run, "program", verdict);
  print_row("check", result.check_summary);
  if (evaluation != nullptr) {
    print_row(
        "", "evaluation: " + summary_of(run, "program of the evaluation",
                                        check::check(evaluation->program, evaluation->reference)));
  }
}

engine::Programs::Inspect prove_others(const engine::Run& run) {
  return [&run](const engine::Compiled& compiled) {
    const std::string& purpose = compiled.program.purpose;
    if (purpose.empty() || purpose == engine::evaluation(run).lowering.purpose) return;
    engine::expect_proven(run, compiled, fmt::format("computes {}", purpose));
  };
}

namespace {

/// Adds the parameters of a second model on the ranks. Its step has the arena of the training's,
/// which is larger.
void add_parameters(const program::Program& program, const program::Program& second,
                    Prediction& result) {
  const std::vector<program::Memory> memory = program::memory_of(second);
  std::vector<int64_t> most(result.memory.size(), 0);
  for (int32_t rank = 0; rank < program.num_ranks(); ++rank) {
    int64_t& of_class = most[program.class_of(rank).value()];
    of_class = std::max(of_class, memory[second.class_of(rank).value()].persistent);
  }
  for (size_t c = 0; c < most.size(); ++c) {
    result.memory[c].persistent += most[c];
  }
}

}  // namespace

Prediction preflight(const engine::Run& run, engine::Programs& programs, const TrainingData& data,
                     const std::string& weights, runtime::LocalRanks& ranks,
                     const engine::Compiled* reference) {
  // Cheap steps come first: description, memory, proof; only a program that has passed is timed,
  // which allocates its memory.
  Prediction result;
  const engine::Compiled& compiled = programs.compiled();
  describe(run, compiled, data, weights, result);
  const engine::Compiled* const evaluation =
      data.holds_out() ? &programs.compiled(engine::evaluation(run)) : nullptr;
  result.memory =
      program::memory_with(compiled.program, evaluation ? &evaluation->program : nullptr);
  if (reference) {
    add_parameters(compiled.program, reference->program, result);
  }
  engine::require_memory(run, compiled.program, result.memory);
  prove(run, compiled, evaluation, result);
  comm::Processes& processes = ranks.processes();
  if (run.config.emulate.on()) {
    if (processes.index() == 0) {
      simulate_played(run, compiled, result);
    }
  } else {
    const std::map<std::string, cost::TimedLink> links =
        measure_links(run, ranks, max_repeats(run.config.train));
    if (processes.index() == 0) {
      simulate(run, compiled, kernels::cpu_backend(), links, result);
    }
  }
  result.step_s = std::stod(processes.broadcast(fmt::format("{:.17g}", result.step_s)));
  print_memory(result);
  result.no_sample = why_no_sample(run, compiled, data, result, processes);
  if (processes.index() == 0) {
    print_prediction(result);
  }
  return result;
}

}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
#include "train/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cost/flops.h"
#include "models/build.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"
#include "train/sample.h"

namespace hocket::train {

const std::string& data_dir(const engine::Run& run) {
  const std::string& dir = run.config.data.dir;
  if (dir.empty()) {
    fail(run.name, "data.dir is missing; expected the folder that `hocket data prepare` wrote");
  }
  if (!is_directory(dir)) {
    fail(dir,
         "no such folder in {}, where the command is called; expected what `hocket data prepare` "
         "wrote",
         std::filesystem::current_path().string());
  }
  return dir;
}

namespace {

/// One line about a verdict. Error, with all that it says, if the check refuses `what`.
std::string summary_of(const engine::Run& run, const char* what, const check::Verdict& verdict) {
  if (!verdict.ok()) fail(run.name, "the static check refuses the {}:\n{}", what, to_text(verdict));
  return fmt::format(
      "{} tasks, {} buffers, {} messages and {} collectives: equal to the single-device "
      "graph, no deadlock, no race ({})",
      verdict.num_tasks, verdict.num_buffers, verdict.num_messages, verdict.num_collectives,
      human_time(verdict.seconds));
}

}  // namespace

Prediction preflight(const engine::Run& run, const engine::Compiled& compiled,
                     const std::shared_ptr<kernels::Backend>& backend, const data::Dataset& dataset,
                     const std::string& weights) {
  Prediction result;
  const auto& program = compiled.program;
  result.params = models::param_count(compiled.reference);
  result.active_params = models::active_param_count(compiled.reference);
  result.model_flops = cost::model_flops(compiled.reference).training() *
                       static_cast<double>(program.num_micro_batches);
  fmt::print("model    {}\n         {:.2f} M parameters ({:.2f} M active), {}\n",
             engine::describe(run.model), static_cast<double>(result.params) / 1e6,
             static_cast<double>(result.active_params) / 1e6, run.config.model.dtype);
  fmt::print("weights  {}\n", weights);
  std::fflush(stdout);
  const auto split = [](const data::SplitStats& split_stats) {
    return fmt::format("{} tokens in {}", human_count(static_cast<double>(split_stats.tokens)),
                       engine::counted(split_stats.files, "file"));
  };
  fmt::print("data     {}: {}; held out {}\n", dataset.folder(), split(dataset.train_stats()),
             dataset.valid() ? split(dataset.valid_stats()) : "nothing");
  std::fflush(stdout);
  fmt::print("plan     {}\n", engine::describe(run));
  std::fflush(stdout);

  std::optional<engine::Compiled> evaluation;
  if (dataset.valid()) {
    evaluation = engine::compile(run, engine::evaluation_options(run));
  }
  result.memory = planned_memory(program, evaluation ? &evaluation->program : nullptr);
  require_memory(run, program, result.memory);
  check::CheckOptions options;
  for (const program::Memory& memory : result.memory) {
    options.evaluation.push_back(memory.evaluation);
  }
  if (run.config.cluster.memory_budget) {
    options.memory_budget = static_cast<int64_t>(*run.config.cluster.memory_budget);
    options.budget_from = "cluster.memory_budget";
  }
  const check::Verdict verdict = check::check(program, compiled.reference, options);
  result.certificate = verdict.certificate;
  result.check_summary = summary_of(run, "program", verdict);
  fmt::print("check    {}\n", result.check_summary);
  if (evaluation) {
    fmt::print("         evaluation: {}\n",
               summary_of(run, "program of the evaluation",
                          check::check(evaluation->program, evaluation->reference)));
  }
  std::fflush(stdout);

  Progress progress;
  ProfileOptions how;
  how.progress = [&](const std::string& text) { progress.update(text); };
  const cost::Profile profile = profile_for(run, compiled, backend, how);
  progress.finish();
  const std::string dtype = run.config.model.dtype;
  if (auto it = profile.peak_flops.find(dtype); it != profile.peak_flops.end()) {
    result.peak_flops = it->second;
  }
  result.memory_bandwidth = profile.memory_bytes_per_s;
  cost::CostModel costs(engine::local_cluster(run), profile, engine::threads_per_rank(run.plan));
  sim::SimOptions sim_options;
  sim_options.model_flops = result.model_flops;
  sim_options.tokens = compiled.tokens_per_step;
  sim_options.evaluation = options.evaluation;
  sim::Replay replay;
  result.report = sim::simulate(program, costs, sim_options, &replay);
  result.trace = sim::to_trace(program, replay);
  result.step_s = static_cast<double>(result.report.step_ns) * 1e-9;
  result.provenance = sim::provenance_text(result.report);
  const auto fullest =
      std::max_element(result.memory.begin(), result.memory.end(),
                       [](const program::Memory& memory, const program::Memory& b) {
                         return memory.total() < b.total();
                       });
  fmt::print("memory   {} planned per rank ({})\n",
             human_bytes(static_cast<double>(fullest->total())), program::parts_text(*fullest));
  int64_t all_ranks = 0;
  for (size_t c = 0; c < result.memory.size(); ++c) {
    all_ranks += std::ssize(program.ranks_of(static_cast<int32_t>(c))) * result.memory[c].total();
  }
  if (const int64_t sample = sample_bytes(run, compiled, dataset); sample > all_ranks) {
    fmt::print("         {} planned in all while the sample is drawn, {} until then\n",
               human_bytes(static_cast<double>(sample)),
               human_bytes(static_cast<double>(all_ranks)));
  }
  fmt::print("predicted  {} per step, {:.0f} tokens/s\n", human_time(result.step_s),
             result.report.tokens_per_s);
  if (const std::string interval = sim::interval_text(result.report); !interval.empty()) {
    fmt::print("           interval: {}\n", interval);
  }
  fmt::print(
      "           {}\n{}not modelled: host work, uneven routing, shared links, ... "
      "(hocket simulate lists all)\n",
      result.provenance, sim::path_text(result.report));
  std::fflush(stdout);
  return result;
}

}  // namespace hocket::train

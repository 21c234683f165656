// SPDX-License-Identifier: Apache-2.0
#include "train/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cost/flops.h"
#include "models/build.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"

namespace hocket::train {

namespace {

/// What the system can give without swapping; 0 if it does not say.
int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key; file.ignore(1 << 10, '\n')) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

const std::string& data_dir(const engine::Run& run) {
  const std::string& dir = run.config.data.dir;
  if (dir.empty())
    fail(run.name, "data.dir is missing; expected the folder that `hocket data prepare` wrote");
  if (!is_directory(dir))
    fail(dir, "no such folder in {}, where the command is called; expected what `hocket data prepare` "
         "wrote", std::filesystem::current_path().string());
  return dir;
}

void require_memory(const engine::Run& run, const program::Program& program) {
  double need = 0, state = 0;
  for (size_t c = 0; c < program.classes.size(); ++c) {
    const program::RankClass& cls = program.classes[c];
    const auto ranks = static_cast<double>(program.ranks_of(static_cast<int32_t>(c)).size());
    state += ranks * static_cast<double>(cls.persistent_bytes);
    need += ranks * static_cast<double>(cls.persistent_bytes + (cls.expected_bytes > 0
                                                                    ? cls.expected_bytes
                                                                    : cls.arena_bytes));
  }
  const auto& budget = run.config.cluster.memory_budget;
  const double have = budget ? *budget * static_cast<double>(program.mesh.size())
                             : static_cast<double>(available_memory());
  if (have <= 0 || need <= have) return;
  fail(run.name,
       "{} local rank{} would need {} of memory ({} parameters, their state, inputs and outputs; "
       "{} activations); {}; try {}, or {}",
       program.mesh.size(), program.mesh.size() == 1 ? "" : "s", human_bytes(need),
       human_bytes(state), human_bytes(need - state),
       (budget ? "cluster.memory_budget allows " : "this machine has free ") + human_bytes(have),
       state < need / 2        ? "plan.recompute: full, a smaller plan.micro_batch or train.seq_len"
       : run.plan.dp > run.plan.ep ? "a smaller plan.dp"
                                   : "a smaller model",
       budget ? "a larger budget" : "set cluster.memory_budget (per rank) to go on nonetheless");
}

Prediction preflight(const engine::Run& run, const engine::Compiled& compiled,
                     const std::shared_ptr<kernels::Backend>& backend,
                     const data::Dataset& dataset, const std::string& weights) {
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
  const auto split = [](const data::SplitStats& s) {
    return fmt::format("{} tokens in {}", human_count(static_cast<double>(s.tokens)),
                       engine::counted(s.files, "file"));
  };
  fmt::print("data     {}: {}; held out {}\n", dataset.folder(), split(dataset.train_stats()),
             dataset.valid() ? split(dataset.valid_stats()) : "nothing");
  std::fflush(stdout);
  fmt::print("plan     {}\n", engine::describe(run));
  std::fflush(stdout);

  require_memory(run, program);
  check::CheckOptions options;
  if (run.config.cluster.memory_budget)
    options.memory_budget = static_cast<int64_t>(*run.config.cluster.memory_budget);
  check::Verdict verdict = check::check(program, compiled.reference, options);
  result.certificate = verdict.certificate;
  if (!verdict.ok()) fail(run.name, "the static check refuses the program:\n{}", to_text(verdict));
  result.check_summary =
      fmt::format("{} tasks, {} buffers, {} messages and {} collectives: equal to the single-device "
                  "graph, no deadlock, no race ({})",
                  verdict.num_tasks, verdict.num_buffers, verdict.num_messages,
                  verdict.num_collectives, human_time(verdict.seconds));
  fmt::print("check    {}\n", result.check_summary);
  std::fflush(stdout);

  Progress progress;
  ProfileOptions how;
  how.progress = [&](const std::string& text) { progress.update(text); };
  const cost::Profile profile = profile_for(run, compiled, backend, how);
  progress.finish();
  const std::string dtype = run.config.model.dtype;
  if (auto it = profile.peak_flops.find(dtype); it != profile.peak_flops.end())
    result.peak_flops = it->second;
  result.memory_bandwidth = profile.memory_bytes_per_s;
  cost::CostModel costs(engine::local_cluster(run), profile, engine::threads_per_rank(run.plan));
  sim::SimOptions sim_options;
  sim_options.model_flops = result.model_flops;
  sim_options.tokens = compiled.tokens_per_step;
  sim::Replay replay;
  result.report = sim::simulate(program, costs, sim_options, &replay);
  result.trace = sim::to_trace(program, replay);
  result.step_s = static_cast<double>(result.report.step_ns) * 1e-9;
  for (const auto& m : result.report.memory)
    result.peak_bytes = std::max(result.peak_bytes, m.peak_bytes());
  result.provenance = sim::provenance_text(result.report);
  fmt::print("predicted  {} per step, {:.0f} tokens/s, {} peak memory per rank\n",
             human_time(result.step_s), result.report.tokens_per_s,
             human_bytes(static_cast<double>(result.peak_bytes)));
  if (const std::string interval = sim::interval_text(result.report); !interval.empty())
    fmt::print("           interval: {}\n", interval);
  fmt::print("           {}\n{}not modelled: host work, uneven routing, shared links, ... "
             "(hocket simulate lists all)\n",
             result.provenance, sim::path_text(result.report));
  std::fflush(stdout);
  return result;
}

}  // namespace hocket::train

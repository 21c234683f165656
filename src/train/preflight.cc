// SPDX-License-Identifier: Apache-2.0
#include "train/preflight.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cost/flops.h"
#include "models/build.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"

namespace hocket::train {

Prediction preflight(const Run& run, const Compiled& compiled,
                     const std::shared_ptr<runtime::Backend>& backend,
                     const data::Dataset& dataset) {
  Prediction result;
  const auto& program = compiled.program;
  result.params = models::param_count(compiled.reference);
  result.active_params = models::active_param_count(compiled.reference);
  result.model_flops = cost::model_flops(compiled.reference).training() *
                       static_cast<double>(program.num_micro_batches);
  fmt::print("model    {}\n         {:.2f} M parameters ({:.2f} M active), {}\n",
             describe(run.model), static_cast<double>(result.params) / 1e6,
             static_cast<double>(result.active_params) / 1e6, run.config.model.dtype);
  fmt::print("data     {}: {:.1f} M tokens in {} files; held out {:.2f} M in {}\n",
             dataset.folder(), static_cast<double>(dataset.train_stats().tokens) / 1e6,
             dataset.train_stats().files, static_cast<double>(dataset.valid_stats().tokens) / 1e6,
             dataset.valid_stats().files);
  fmt::print("plan     {}\n", describe(run));

  check::CheckOptions options;
  if (run.config.cluster.memory_budget)
    options.memory_budget = static_cast<int64_t>(*run.config.cluster.memory_budget);
  check::Verdict verdict = check::check(program, compiled.reference, options);
  result.program_hash = verdict.program_hash.hex();
  if (!verdict.ok()) fail(run.name, "the static check refuses the program:\n{}", to_text(verdict));
  result.check_summary =
      fmt::format("{} tasks, {} buffers, {} messages and {} collectives: equal to the single-device "
                  "graph, no deadlock, no race ({})",
                  verdict.num_tasks, verdict.num_buffers, verdict.num_messages,
                  verdict.num_collectives, human_time(verdict.seconds));
  fmt::print("check    {}\n", result.check_summary);

  Progress progress;
  ProfileOptions how;
  how.progress = [&](int64_t done, int64_t total, const std::string& what) {
    progress.update(fmt::format("timing tasks {}/{} ({})", done, total, what));
  };
  const std::string path = run.config.cluster.profile.empty()
                               ? run.config.output.dir + "/profile.json"
                               : run.config.cluster.profile;
  cost::Profile profile = profile_cached(path, run, compiled, backend, how);
  progress.finish();
  const std::string dtype = run.config.model.dtype;
  if (auto it = profile.peak_flops.find(dtype); it != profile.peak_flops.end())
    result.peak_flops = it->second;
  result.memory_bandwidth = profile.memory_bytes_per_s;
  cost::CostModel costs(local_cluster(run), profile, threads_per_rank(run.plan));
  sim::SimOptions sim_options;
  sim_options.model_flops = result.model_flops;
  sim_options.tokens = compiled.tokens_per_step;
  sim::Replay replay;
  result.report = sim::simulate(program, costs, sim_options, &replay);
  result.trace = sim::to_trace(program, replay);
  result.step_s = static_cast<double>(result.report.step_ns) * 1e-9;
  for (const auto& m : result.report.memory)
    result.peak_bytes = std::max(result.peak_bytes, m.peak_bytes());
  result.provenance = fmt::format(
      "{:.0f} % of the time from tasks timed in isolation on this machine, {:.0f} % interpolated, "
      "{:.0f} % analytic",
      100 * result.report.provenance.timed, 100 * result.report.provenance.interpolated,
      100 * result.report.provenance.analytic);
  fmt::print("predicted  {} per step, {:.0f} tokens/s, {} peak memory per rank\n         {}\n",
             human_time(result.step_s), result.report.tokens_per_s,
             human_bytes(static_cast<double>(result.peak_bytes)), result.provenance);
  std::fflush(stdout);
  return result;
}

}  // namespace hocket::train

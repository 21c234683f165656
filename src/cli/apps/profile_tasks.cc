// SPDX-License-Identifier: Apache-2.0
// hocket profile RUN: times the tasks of a run's program on this machine.
#include "cli/apps/profile_tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/inputs.h"
#include "cost/cost_model.h"
#include "engine/memory.h"
#include "engine/session.h"
#include "run/machine.h"
#include "train/profiler.h"

namespace hocket::cli {
namespace {

/// Prints the tasks that a step of the program spends most in, with their share of the step.
void print_longest(std::FILE* messages, const program::Program& program,
                   const cost::Profile& profile) {
  std::vector<std::pair<int64_t, const cost::TimedTask*>> by_time;
  int64_t total = 0;
  for (const cost::ProfileTarget& target : cost::distinct_tasks(program)) {
    for (const cost::TimedTask& task : profile.tasks) {
      if (task.key == target.key) {
        by_time.push_back({target.count * task.ns, &task});
        total += target.count * task.ns;
      }
    }
  }
  std::sort(by_time.begin(), by_time.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->key < b.second->key;
  });
  fmt::print(messages, "{:>8}  {:>10}  {:>15}  {}\n", "share", "a task", "rate", "op and types");
  for (size_t i = 0; i < std::min<size_t>(8, by_time.size()); ++i) {
    const cost::TimedTask& task = *by_time[i].second;
    fmt::print(messages, "{:>6.1f} %  {:>10}  {:>7.1f} GFLOP/s  {}\n",
               100.0 * static_cast<double>(by_time[i].first) /
                   static_cast<double>(std::max<int64_t>(total, 1)),
               human_time(static_cast<double>(task.ns) * 1e-9),
               task.flops / static_cast<double>(std::max<int64_t>(task.ns, 1)),
               task.key.substr(0, 90));
  }
}

/// Prints the fitted model for ops without a timing.
void print_learned(std::FILE* messages, const engine::Run& run, const cost::Profile& profile) {
  const cost::CostModel costs(engine::local_cluster(run), profile,
                              engine::threads_per_rank(run.plan));
  const cost::LearnedTimes& learned = *costs.learned();
  if (learned.held_out() <= 0) return;
  fmt::print(
      messages,
      "ops left out, one at a time, are predicted from the others within {:.0f} % (median; the "
      "roofline: {:.0f} %){}\n",
      100 * learned.held_out(), 100 * learned.roofline_held_out(),
      learned.useful() ? "" : ", so that ops that are not here will be the roofline's");
}

}  // namespace

int profile_tasks(const ProfileVerbOptions& options) {
  if (options.seconds < 0) fail("hocket profile", "--seconds is negative");
  const Source source = read_source(options.run, options.set, true);
  std::vector<std::string> inputs = inputs_of(source.run);
  std::erase(inputs, source.run.config.cluster.profile);  // may be made anew
  inputs.push_back(options.run);
  require_output("hocket profile --out", options.out, inputs);
  const engine::Compiled compiled = source.compile();
  engine::require_memory(source.run, compiled.program);
  // Under a launcher all time the links between them, and then the first one the tasks.
  runtime::LocalRanks ranks = engine::local_ranks(source.run);
  train::ProfileOptions profile_options;
  profile_options.links = train::measure_links(source.run, ranks, profile_options.max_repeats);
  if (ranks.processes().index() > 0) return 0;
  Progress progress;
  profile_options.seconds = options.seconds;
  profile_options.progress = [&](const std::string& text) { progress.update(text); };
  const cost::Profile profile =
      train::profile(source.run, compiled, kernels::cpu_backend(), profile_options);
  progress.finish();
  const std::string text = cost::to_json(profile);
  write_output(options.out, text);
  if (options.json) {
    if (options.out != "-") {
      fmt::print("{}\n", text);
    }
    return 0;
  }
  std::FILE* messages = message_stream(options.out);
  print_longest(messages, compiled.program, profile);
  print_learned(messages, source.run, profile);
  for (const auto& [name, link] : profile.links) {
    fmt::print(messages,
               "link {}: messages {} and {}/s, collectives {} and {}/s; beside these, tasks take "
               "{:.2f} times as long, and these beside tasks {:.2f} times\n",
               name, human_time(link.latency_ns * 1e-9), human_bytes(link.bytes_per_s),
               human_time(link.collective_latency_ns * 1e-9),
               human_bytes(link.collective_bytes_per_s), link.compute_slowdown,
               link.collective_slowdown);
  }
  fmt::print(messages, "{} distinct tasks timed; wrote {}\n", profile.tasks.size(), options.out);
  return 0;
}

}  // namespace hocket::cli

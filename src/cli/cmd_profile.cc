// SPDX-License-Identifier: Apache-2.0
// hocket profile
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "train/memory.h"
#include "train/profiler.h"

namespace hocket::cli {

namespace {

struct Options {
  std::string run, out = "profile.json";
  std::vector<std::string> set;
  double seconds = 1.5;
  bool json = false;
};

/// The tasks that a step of the program spends most in, with their share of the step.
void tell_longest(std::FILE* words, const program::Program& program, const cost::Profile& profile) {
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
  for (size_t i = 0; i < std::min<size_t>(8, by_time.size()); ++i) {
    const cost::TimedTask& task = *by_time[i].second;
    fmt::print(words, "{:>6.1f} %  {:>10}  {:>7.1f} GFLOP/s  {}\n",
               100.0 * static_cast<double>(by_time[i].first) /
                   static_cast<double>(std::max<int64_t>(total, 1)),
               human_time(static_cast<double>(task.ns) * 1e-9),
               task.flops / static_cast<double>(std::max<int64_t>(task.ns, 1)),
               task.key.substr(0, 90));
  }
}

/// Times the tasks of the run's program and writes the file; then says where the time of a step
/// goes.
int profile(const Options& options) {
  if (options.seconds < 0) fail("hocket profile", "--seconds is negative");
  const Source source = read_source(options.run, options.set, true);
  std::vector<std::string> inputs = inputs_of(source.run);
  std::erase(inputs, source.run.config.cluster.profile);  // may be made anew
  inputs.push_back(options.run);
  require_output("hocket profile --out", options.out, inputs);
  const engine::Compiled compiled = source.compile();
  train::require_memory(source.run, compiled.program);
  Progress progress;
  train::ProfileOptions how;
  how.seconds = options.seconds;
  how.progress = [&](const std::string& text) { progress.update(text); };
  const cost::Profile profile = train::profile(source.run, compiled, kernels::cpu_backend(), how);
  progress.finish();
  const std::string text = cost::to_json(profile);
  write_output(options.out, text);
  if (options.json) {
    if (options.out != "-") {
      fmt::print("{}\n", text);
    }
    return 0;
  }
  std::FILE* words = words_beside(options.out);
  tell_longest(words, compiled.program, profile);
  fmt::print(words, "{} distinct tasks timed; wrote {}\n", profile.tasks.size(), options.out);
  return 0;
}

}  // namespace

void verb_profile(Args& args) {
  auto options = std::make_shared<Options>();
  args.about(
      "time this machine's tasks, so that predictions are calibrated",
      "Times every distinct task of the run's program alone, with the inputs that it has in a "
      "real step, and the links between local ranks. `simulate --profile` and cluster.profile "
      "take the file; tasks of other sizes are interpolated from it. `train` does this by "
      "itself before its first step. Run it on an idle machine.");
  args.positional("RUN", &options->run, "a run.yaml, the text of a program, or a MODEL");
  add_set(args, &options->set);
  args.option("--out", "FILE", &options->out, "where the timings go; -: standard output");
  args.option("--seconds", "S", &options->seconds,
              "the tasks of each stage are run through at least this long");
  args.flag("--json", &options->json, "print the timings as well");
  args.example("hocket profile configs/quickstart.yaml --out profile.json", "then:");
  args.example("hocket simulate configs/quickstart.yaml --profile profile.json",
               "a prediction from timed tasks");
  args.run([options] { return profile(*options); });
}

}  // namespace hocket::cli

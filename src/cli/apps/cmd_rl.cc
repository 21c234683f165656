// SPDX-License-Identifier: Apache-2.0
// hocket rl
#include <fmt/core.h>

#include <memory>

#include "base/error.h"
#include "cli/inputs.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "rl/trainer.h"

namespace hocket::cli {

void verb_rl(Args& args) {
  struct RlVerbOptions {
    std::string run;
    std::vector<std::string> set;
    bool print_config = false;
  };
  auto options = std::make_shared<RlVerbOptions>();
  args.about(
      "train a model by reinforcement learning, on rewards of its own answers",
      "A step samples prompts of data.sources (prompts_per_step x samples_per_prompt answers), "
      "scores every answer while others are still drawn, computes advantages, and makes one "
      "or more optimizer steps. Sampling and training share parameters and kernels: their "
      "log-probabilities are equal bit for bit, which every step measures and shows.\n"
      "Into output.dir go metrics.jsonl (names as TRL's), checkpoints that transformers opens, "
      "and with rl.trajectories every sample. Ctrl-C (SIGTERM, SIGHUP) ends the run after the "
      "step's update with a checkpoint; the same command continues from the newest one, bit for "
      "bit. docs/rl.md has the keys, and the names that verl and TRL give them.");
  args.positional("RUN", &options->run, "a run.yaml with objective: rl");
  add_set(args, &options->set);
  args.flag("--print-config", &options->print_config,
            "print every resolved value and where it came from, and end");
  args.example(
      "hocket data task reverse --out runs/reverse && hocket train "
      "runs/reverse/warmup.yaml && hocket rl runs/reverse/rl.yaml",
      "a small model learns to reverse digits, in a few minutes");
  args.example(
      "hocket rl runs/reverse/rl.yaml --set plan.dp=2 --set rl.samples_per_prompt=32 --set "
      "output.dir=runs/reverse/dp2",
      "on two data-parallel ranks, larger groups");
  args.run([options] {
    if (options->print_config) {
      engine::Run run = engine::resolve_run(options->run, options->set);
      fmt::print("{}", run.resolved.to_yaml(true));
      engine::derive(run);
      return 0;
    }
    const Source source = read_source(options->run, options->set);
    if (source.parsed_program) {
      fail(options->run, "is the text of a program; expected a run.yaml");
    }
    if (source.run.config.objective != engine::Objective::rl) {
      fail(options->run, "objective is not rl; expected objective: rl, or `hocket train`");
    }
    warn_if_long(source.run.model, source.run.config.train.seq_len, "train.seq_len");
    redirect_output(source.run.config.output.dir + "/logs");
    return rl::train(source.run, command_line());
  });
}

}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
// hocket train
#include <fmt/core.h>

#include <memory>

#include "base/error.h"
#include "cli/inputs.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "train/trainer.h"

namespace hocket::cli {

void verb_train(Args& args) {
  struct TrainVerbOptions {
    std::string run;
    std::vector<std::string> set;
    bool print_config = false, print_keys = false, json = false;
  };
  auto options = std::make_shared<TrainVerbOptions>();
  args.about(
      "train a model as run.yaml says, or go on where it stopped",
      "Shows the model, the plan, the static check's verdict and the predicted step time and "
      "memory; then trains. While it runs: step, loss, tokens/s, FLOP/s, expert balance, "
      "predicted beside measured step time. Into output.dir go metrics.jsonl, checkpoints "
      "that transformers opens, a trace that Perfetto opens, and report.html.\n"
      "Ctrl-C (SIGTERM, SIGHUP) finishes the step, saves a checkpoint, writes the report and ends "
      "with exit code 130 (143, 129); a second one ends at once. The same command continues from "
      "the newest checkpoint, bit for bit. Ranks are threads of this process, or processes that a "
      "launcher "
      "starts (hocket launch, torchrun, mpirun, srun).");
  args.positional("RUN", &options->run, "a run.yaml, or the text of a program (`hocket graph`)",
                  false);
  add_set(args, &options->set);
  args.flag("--print-config", &options->print_config,
            "print every resolved value and where it came from, and end");
  args.flag("--print-keys", &options->print_keys,
            "print every key of a run.yaml with type, default and meaning, and end");
  args.flag("--json", &options->json, "print JSON, for --print-config");
  args.example("hocket train configs/quickstart.yaml",
               "a small mixture of experts, on the data of ./quickstart");
  args.example(
      "hocket train configs/quickstart.yaml --set plan.dp=2 --set plan.pp=2 "
      "--set plan.micro_batch=1 --set output.dir=runs/four --set train.steps=20 "
      "--set train.minutes=0",
      "the same model on 4 local ranks: 2 pipeline stages of 2 data-parallel ranks");
  args.example("hocket train configs/quickstart.yaml --print-config", "the resolved configuration");
  args.run([options] {
    if (options->print_keys) {
      engine::RunConfig defaults;
      Fields fields;
      defaults.fields(fields);
      fmt::print("{}", document_config(fields));
      return 0;
    }
    if (options->run.empty()) {
      fail("hocket train", "RUN is missing: a run.yaml; try: hocket train --help");
    }
    if (options->print_config) {
      // Printed before it is refused: it says where a value that does not fit came from.
      engine::Run run = engine::resolve_run(options->run, options->set);
      fmt::print("{}",
                 options->json ? run.resolved.to_json_text(2) + "\n" : run.resolved.to_yaml(true));
      engine::derive(run);
      return 0;
    }
    const Source source = read_source(options->run, options->set);
    if (source.run.config.objective == engine::Objective::rl) {
      fail("hocket train", "objective is rl; try: hocket rl {}", options->run);
    }
    if (options->json) {
      fail("hocket train", "--json goes with --print-config; metrics are in metrics.jsonl");
    }
    warn_if_long(source.run.model, source.run.config.train.seq_len, "train.seq_len");
    redirect_output(source.run.config.output.dir + "/logs");
    return train::train(source.run, {source.parsed_program, command_line()});
  });
}

}  // namespace hocket::cli

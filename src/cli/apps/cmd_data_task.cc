// SPDX-License-Identifier: Apache-2.0
// hocket data task
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/apps/data_commands.h"
#include "cli/inputs.h"
#include "rl/task_files.h"

namespace hocket::cli {
namespace {

constexpr const char* kTaskCommand = "hocket data task";

struct TaskCommand {
  rl::TaskFilesOptions files;
  std::optional<int64_t> train;
  int64_t held_out = 500, warm_up = 16384, seed = 1;
  bool list = false;
};

void list_tasks() {
  for (const rl::TaskKind& kind : rl::task_kinds()) {
    rl::TaskOptions options;
    options.name = kind.name;
    const auto task = rl::make_task(rl::complete_options(options));
    const rl::Problem example = rl::problem_of(*task, 1, 0);
    fmt::print("{:<16}{}\n{:<16}{} -> {}\n", kind.name, kind.summary, "", example.prompt,
               example.answer);
  }
}

int run_task(TaskCommand command) {
  if (command.list) {
    if (!command.files.task.name.empty()) {
      fail(kTaskCommand, "got --list and a task; expected one of them");
    }
    list_tasks();
    return 0;
  }
  rl::TaskFilesOptions& files = command.files;
  if (files.task.name.empty()) fail(kTaskCommand, "no task; expected a name; try --list");
  if (files.folder.empty() || files.folder == "-") {
    fail(kTaskCommand, "no folder to write to; expected --out DIR");
  }
  files.sizes = {command.train.value_or(rl::find_task(files.task.name).train), command.held_out,
                 command.warm_up};
  files.seed = static_cast<uint64_t>(command.seed);
  rl::write_task_files(files);
  const bool chat = !files.chat_model.empty();
  fmt::print("{}: {}, {} to train on, {} held out{}\n", files.folder, files.task.name,
             counted(files.sizes.train, "problem"), files.sizes.held_out,
             chat ? "" : fmt::format(", {} of the form", counted(command.warm_up, "example")));
  const auto in_folder = [&](const char* name) {
    return shell_quoted(files.folder + (files.folder.ends_with('/') ? "" : "/") + name);
  };
  fmt::print("next     {}hocket rl {}\n",
             chat ? "" : fmt::format("hocket train {} && ", in_folder("warmup.yaml")),
             in_folder("rl.yaml"));
  return 0;
}

}  // namespace

void declare_data_task(Args& args) {
  auto command = std::make_shared<TaskCommand>();
  args.about(
      "problems that are drawn, not downloaded, for reinforcement learning",
      "Writes a folder with problems to train on and others held out, a tokenizer of characters, "
      "a model of 1.3 M parameters, examples that teach it the form of answers, and the run.yaml "
      "of both trainings (docs/tasks.md). The same options write the same bytes.");
  args.positional("NAME", &command->files.task.name,
                  "copy, reverse, sort, addition, multi_addition or countdown", false);
  args.flag("--list", &command->list, "list the tasks, with a problem of each");
  args.option("--out", "DIR", &command->files.folder, "folder to write");
  args.option("--digits", "N", &command->files.task.digits,
              "digits of a problem (copy, reverse, sort), or most digits of a number (other "
              "tasks); 0: 8, for addition 3, for multi_addition and countdown 1",
              0, 64);
  args.option("--operands", "N", &command->files.task.operands,
              "most numbers of a problem (multi_addition), or its numbers (countdown); 0: 8 and 3",
              0, 64);
  args.option("--operators", "CHARACTERS", &command->files.task.operators,
              "for countdown: operators, some of + - *");
  args.flag("--reversed", &command->files.task.reversed,
            "for addition: begin answers with their last digit, which is easier to learn");
  args.option("--train", "N", &command->train,
              "problems to train on; default: 8192, for countdown 2800", 1, 1 << 24);
  args.option("--held-out", "N", &command->held_out,
              "problems held out; none is one to train on with its numbers in another order", 1,
              1 << 24);
  args.option("--warmup", "N", &command->warm_up, "examples that teach the form of answers", 1,
              1 << 24);
  args.option("--seed", "S", &command->seed, "seed of problems and trainings", 0, INT64_MAX);
  args.option("--chat", "MODEL", &command->files.chat_model,
              "write problems as chats, whose answers stand between <answer> and </answer>, and a "
              "run.yaml for this model; no warm-up");
  args.example("hocket data task reverse --out runs/reverse",
               "then hocket train runs/reverse/warmup.yaml, hocket rl runs/reverse/rl.yaml");
  args.example("hocket data task countdown --out runs/countdown --operators '+-*' --seed 2",
               "with products, other problems");
  args.example("hocket data task --list", "the tasks");
  args.run([command] { return run_task(*command); });
}

}  // namespace hocket::cli

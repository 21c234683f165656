// SPDX-License-Identifier: Apache-2.0
#include "rl/tasks.h"

#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"

namespace hocket::rl {

namespace {

constexpr const char* kTask = "task";
constexpr uint64_t kHeldOutShare = 3;  // one key in so many is held out
// Draws in a row without a new problem, after which hardly one is left.
constexpr int64_t kVainDraws = 20'000;

Rng generator(uint64_t seed, const char* stream, int64_t index) {
  return Rng(random_bits(seed, hash_name(stream), static_cast<uint64_t>(index)));
}

void require_within(const char* what, int64_t value, int64_t least, int64_t most,
                    const std::string& name) {
  if (value < least || value > most) {
    fail(kTask, "{} of {} are {}; expected {} to {}", what, name, value, least, most);
  }
}

void require_operators(const TaskOptions& options) {
  const std::string& given = options.operators;
  if (options.name != "countdown") {
    if (given != TaskOptions().operators) {
      fail(kTask, "{} has no choice of operators; expected none", options.name);
    }
    return;
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (std::string("+-*").find(given[i]) == std::string::npos || given.find(given[i]) < i) {
      fail(kTask, "operators are {}; expected some of + - *, each once", quote(given));
    }
  }
  if (given.empty()) fail(kTask, "operators are empty; expected some of + - *");
}

}  // namespace

const std::vector<TaskKind>& task_kinds() {
  // Without an entropy bonus some seeds collapse early. Without a reference some write the prompt's
  // most frequent digit at every place of `reverse`, for which `digits` pays, or learn problems of
  // `countdown` by heart.
  constexpr const char *kLr = "5.0e-4", *kEntropy = "0.01";
  static const std::vector<TaskKind> kinds = {
      {"copy", "digits as they are", 8, 64, 0, 0, 8192, "{type: digits}",
       "{type: exact, extract: answer}", 200, 400, kLr, kEntropy, nullptr, make_copy_task},
      {"reverse", "digits from the last to the first", 8, 64, 0, 0, 8192, "{type: digits}",
       "{type: exact, extract: answer}", 200, 400, kLr, kEntropy, "0.1", make_reverse_task},
      {"sort", "digits from the smallest to the largest", 8, 64, 0, 0, 8192, "{type: digits}",
       "{type: exact, extract: answer}", 200, 400, kLr, kEntropy, nullptr, make_sort_task},
      {"addition", "sum of two numbers", 3, 17, 0, 0, 8192, "{type: digits}",
       "{type: exact, extract: answer}", 1000, 1000, kLr, "0.003", nullptr, make_addition_task},
      {"multi_addition", "sum of several numbers, step by step", 1, 12, 8, 64, 8192,
       "{type: exact, extract: \"after:=\"}", "{type: exact, extract: answer}", 400, 400, kLr,
       kEntropy, nullptr, make_multi_addition_task},
      {"countdown", "an expression of given numbers that has a given value", 1, 3, 3, 6, 2800,
       "{type: countdown, extract: all}", "{type: countdown, extract: answer}", 200, 400, kLr,
       kEntropy, "0.05", make_countdown_task},
  };
  return kinds;
}

const TaskKind& find_task(const std::string& name) {
  std::vector<std::string> names;
  for (const TaskKind& kind : task_kinds()) {
    if (name == kind.name) return kind;
    names.emplace_back(kind.name);
  }
  const std::string near = nearest(name, names);
  fail(kTask, "no task is called {}; expected {}{}", quote(name), join(names, ", "),
       near.empty() ? "" : "; try " + near);
}

TaskOptions complete_options(TaskOptions options) {
  const TaskKind& kind = find_task(options.name);
  if (options.digits == 0) {
    options.digits = kind.digits;
  }
  require_within("digits", options.digits, 1, kind.most_digits, options.name);
  if (kind.operands == 0) {
    if (options.operands != 0) {
      fail(kTask, "{} has no number of operands; expected none", options.name);
    }
  } else {
    if (options.operands == 0) {
      options.operands = kind.operands;
    }
    require_within("operands", options.operands, 2, kind.most_operands, options.name);
  }
  if (options.reversed && options.name != "addition") {
    fail(kTask, "{} has no reversed answers; expected this of addition alone", options.name);
  }
  require_operators(options);
  return options;
}

std::unique_ptr<Task> make_task(const TaskOptions& options) {
  return find_task(options.name).make(options);
}

Problem problem_of(const Task& task, uint64_t seed, int64_t index) {
  Rng rng = generator(seed, "rl/tasks/problem", index);
  return task.draw(&rng);
}

bool is_held_out(uint64_t seed, const std::string& key) {
  return random_bits(seed, hash_name("rl/tasks/split"), hash_name(key)) % kHeldOutShare == 0;
}

TaskProblems draw_problems(const TaskOptions& options, uint64_t seed, const TaskSizes& sizes) {
  const std::unique_ptr<Task> task = make_task(options);
  TaskProblems out;
  std::unordered_set<std::string> prompts;
  const auto missing = [&] {
    return std::ssize(out.train) < sizes.train || std::ssize(out.held_out) < sizes.held_out;
  };
  int64_t vain = 0;
  for (int64_t index = 0; missing() && vain < kVainDraws; ++index, ++vain) {
    Problem problem = problem_of(*task, seed, index);
    const bool held_out = is_held_out(seed, problem.key);
    std::vector<Problem>& set = held_out ? out.held_out : out.train;
    if (std::ssize(set) == (held_out ? sizes.held_out : sizes.train)) continue;
    if (!prompts.insert(problem.prompt).second) continue;
    set.push_back(std::move(problem));
    vain = 0;
  }
  if (missing()) {
    fail(kTask,
         "{} with these options has {} problems to train on and {} held out; expected {} and {}; "
         "try more digits, or fewer problems",
         options.name, out.train.size(), out.held_out.size(), sizes.train, sizes.held_out);
  }
  vain = 0;
  for (int64_t index = 0; std::ssize(out.warm_up) < sizes.warm_up; ++index) {
    Rng rng = generator(seed, "rl/tasks/warm_up", index);
    WarmUpExample example = task->draw_warm_up(&rng);
    if (is_held_out(seed, example.key)) {
      if (++vain > kVainDraws) fail(kTask, "{}: every problem is held out", options.name);
      continue;
    }
    vain = 0;
    out.warm_up.push_back(std::move(example));
  }
  return out;
}

}  // namespace hocket::rl

// SPDX-License-Identifier: Apache-2.0
// Tasks whose problems are drawn, not downloaded (docs/tasks.md). A problem is a function of task,
// seed and index alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hocket {
class Rng;
}

namespace hocket::rl {

struct TaskOptions {
  std::string name;
  int64_t digits = 0;            ///< of a number, or numbers of one digit; 0: TaskKind::digits
  int64_t operands = 0;          ///< numbers of a problem, or most of them; 0: TaskKind::operands
  std::string operators = "+-";  ///< countdown: some of + - *
  bool reversed = false;         ///< addition: the answer begins with its last digit
};

/// A problem with its answer, in the characters of kTaskCharacters.
struct Problem {
  std::string prompt;
  std::string answer;        ///< a right one
  std::string ground_truth;  ///< JSON, as the task's reward reads it
  std::string question;      ///< the same as `prompt` for a language model, which answers in words
  /// Equal for problems that help with each other: numbers in another order. Those of one key are
  /// all held out, or none is.
  std::string key;
};

/// A prompt with a completion that has the form of an answer. Hard ones are right by chance alone;
/// multi_addition and addition have right ones of few operands or digits, too.
struct WarmUpExample {
  std::string prompt, completion, key;
};

/// A task with its options.
class Task {
 public:
  virtual ~Task() = default;
  virtual Problem draw(Rng* rng) const = 0;
  /// Draws an example of the warm-up.
  virtual WarmUpExample draw_warm_up(Rng* rng) const = 0;
  /// Upper bounds, in characters.
  virtual int64_t longest_prompt() const = 0;
  virtual int64_t longest_answer() const = 0;
};

struct TaskKind {
  const char* name;
  const char* summary;
  int64_t digits, most_digits;      ///< default and upper bound of TaskOptions::digits
  int64_t operands, most_operands;  ///< the same of operands; 0: the task has no such option
  int64_t train;                    ///< default number of problems to train on
  const char* reward;               ///< an element of rl.rewards, as YAML
  const char* chat_reward;          ///< the same for language models
  int64_t warm_up_steps;
  int64_t rl_steps;
  const char* rl_lr;         ///< train.lr of the updates, as YAML
  const char* entropy_coef;  ///< rl.entropy_coef, as YAML
  const char* kl_coef;       ///< rl.kl_coef, as YAML; null: no reference
  std::unique_ptr<Task> (*make)(const TaskOptions& options);
};

/// Characters of all prompts and answers; a character-level tokenizer has one token for each.
inline constexpr const char* kTaskCharacters = "0123456789+-*=,:crs";

/// Returns the tasks, in the order of docs/tasks.md.
const std::vector<TaskKind>& task_kinds();
/// Returns a kind of task by its name. Throws Error, with the nearest name, for an unknown one.
const TaskKind& find_task(const std::string& name);
/// Sets the options that are 0 to the task's defaults. Throws Error for one out of bounds, or that
/// the task does not have.
TaskOptions complete_options(TaskOptions options);
/// Requires: options are complete.
std::unique_ptr<Task> make_task(const TaskOptions& options);

/// Returns problem `index` >= 0, a pure function.
Problem problem_of(const Task& task, uint64_t seed, int64_t index);
/// Returns whether problems of this key are held out: a third of all keys.
bool is_held_out(uint64_t seed, const std::string& key);

struct TaskSizes {
  int64_t train = 0, held_out = 0, warm_up = 0;
};
struct TaskProblems {
  std::vector<Problem> train, held_out;  ///< different prompts, by index
  std::vector<WarmUpExample> warm_up;    ///< of keys that are not held out; prompts may repeat
};
/// Draws problems until all sets are full. Throws Error if the task has too few.
TaskProblems draw_problems(const TaskOptions& options, uint64_t seed, const TaskSizes& sizes);

/// Returns the value of an expression of numbers and operators + - *, products first: "2+3*4" is
/// 14. Requires: the expression is well-formed.
int64_t value_of_expression(const std::string& expression);

// The makers of the tasks, by family.
std::unique_ptr<Task> make_copy_task(const TaskOptions& options);
std::unique_ptr<Task> make_reverse_task(const TaskOptions& options);
std::unique_ptr<Task> make_sort_task(const TaskOptions& options);
std::unique_ptr<Task> make_addition_task(const TaskOptions& options);
std::unique_ptr<Task> make_multi_addition_task(const TaskOptions& options);
std::unique_ptr<Task> make_countdown_task(const TaskOptions& options);

}  // namespace hocket::rl

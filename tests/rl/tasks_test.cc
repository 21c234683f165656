// SPDX-License-Identifier: Apache-2.0
// Problems of the tasks: answers by code of this file's own, the split, the examples of the form,
// and the files.
#include "rl/tasks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "rl/task_files.h"
#include "tests/data/data_util.h"

namespace hocket::rl {
namespace {

constexpr uint64_t kSeed = 7;
constexpr int64_t kDraws = 400;

/// Returns every task with its defaults, and variants with other options.
std::vector<TaskOptions> all_options() {
  std::vector<TaskOptions> out;
  for (const TaskKind& kind : task_kinds()) {
    TaskOptions options;
    options.name = kind.name;
    out.push_back(complete_options(options));
  }
  TaskOptions variant;
  variant.name = "addition";
  variant.reversed = true;
  out.push_back(complete_options(variant));
  variant = {};
  variant.name = "countdown";
  variant.operators = "+-*";
  variant.operands = 4;
  variant.digits = 2;
  out.push_back(complete_options(variant));
  variant = {};
  variant.name = "multi_addition";
  variant.operands = 5;
  variant.digits = 3;
  out.push_back(complete_options(variant));
  return out;
}

std::vector<int64_t> numbers_in(std::string_view text, char separator) {
  std::vector<int64_t> out;
  for (const std::string& part : split(text, separator)) {
    int64_t number = -1;
    EXPECT_TRUE(parse_int(part, &number)) << text;
    out.push_back(number);
  }
  return out;
}

/// An expression, cut at the operator that is applied last.
int64_t value_cut_at_operators(const std::string& expression, std::vector<int64_t>* numbers) {
  size_t at = expression.find_last_of("+-");
  if (at == std::string::npos) {
    at = expression.rfind('*');
  }
  if (at == std::string::npos) {
    int64_t number = 0;
    EXPECT_TRUE(parse_int(expression, &number)) << expression;
    numbers->push_back(number);
    return number;
  }
  const int64_t before = value_cut_at_operators(expression.substr(0, at), numbers);
  const int64_t behind = value_cut_at_operators(expression.substr(at + 1), numbers);
  return expression[at] == '+'   ? before + behind
         : expression[at] == '-' ? before - behind
                                 : before * behind;
}

/// Returns whether `answer` has the form of one to `prompt`; `right`: and is right.
bool has_form(const TaskOptions& options, const std::string& prompt, const std::string& answer,
              bool* right) {
  const std::string& name = options.name;
  *right = false;
  if (name == "copy" || name == "reverse" || name == "sort") {
    std::string digits = prompt.substr(1, prompt.size() - 2), other = answer;
    std::string expected = digits;
    if (name == "reverse") {
      expected.assign(digits.rbegin(), digits.rend());
    }
    if (name == "sort") {
      std::sort(expected.begin(), expected.end());
    }
    *right = answer == expected;
    return prompt[0] == name[0] && prompt.back() == '=' &&
           std::is_permutation(digits.begin(), digits.end(), other.begin(), other.end());
  }
  if (name == "addition") {
    const std::vector<int64_t> numbers = numbers_in(prompt.substr(0, prompt.size() - 1), '+');
    std::string sum = answer;
    if (options.reversed) {
      std::reverse(sum.begin(), sum.end());
    }
    *right = sum == fmt::format("{}", numbers[0] + numbers[1]);
    const size_t longest = std::max(fmt::format("{}", numbers[0]).size(),  //
                                    fmt::format("{}", numbers[1]).size());
    return sum.find_first_not_of("0123456789") == std::string::npos && sum[0] != '0' &&
           (sum.size() == longest || sum.size() == longest + 1);
  }
  if (name == "multi_addition") {
    const std::vector<int64_t> numbers = numbers_in(prompt.substr(0, prompt.size() - 1), '+');
    const std::vector<std::string> steps = split(answer, ',');
    if (steps.size() + 1 != numbers.size()) return false;
    *right = true;
    int64_t before = numbers[0];
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::string left = fmt::format("{}+{}=", before, numbers[i + 1]);
      if (!steps[i].starts_with(left)) return false;
      const int64_t sum = numbers_in(steps[i].substr(left.size()), ',')[0];
      *right = *right && sum == before + numbers[i + 1];
      before = sum;
    }
    return true;
  }
  const size_t equals = prompt.find('=');
  std::vector<int64_t> numbers = numbers_in(prompt.substr(0, equals), ','), used;
  const int64_t target = numbers_in(prompt.substr(equals + 1, prompt.size() - equals - 2), ',')[0];
  *right = value_cut_at_operators(answer, &used) == target;
  for (const char c : answer) {
    if ((c < '0' || c > '9') && options.operators.find(c) == std::string::npos) return false;
  }
  return prompt.back() == ':' &&
         std::is_permutation(numbers.begin(), numbers.end(), used.begin(), used.end());
}

TEST(Tasks, AnswersAreRightAndWithinTheirBounds) {
  for (const TaskOptions& options : all_options()) {
    const auto task = make_task(options);
    size_t longest = 0, shortest = 1000;
    for (int64_t i = 0; i < kDraws; ++i) {
      const Problem problem = problem_of(*task, kSeed, i);
      bool right = false;
      EXPECT_TRUE(has_form(options, problem.prompt, problem.answer, &right)) << problem.prompt;
      EXPECT_TRUE(right) << problem.prompt << problem.answer;
      EXPECT_LE(std::ssize(problem.prompt), task->longest_prompt()) << problem.prompt;
      EXPECT_LE(std::ssize(problem.answer), task->longest_answer()) << problem.answer;
      EXPECT_EQ((problem.prompt + problem.answer).find_first_not_of(kTaskCharacters),
                std::string::npos);
      const auto truth = nlohmann::json::parse(problem.ground_truth);
      if (options.name == "countdown") {
        std::vector<int64_t> used;
        EXPECT_EQ(truth.at("target").get<int64_t>(), value_cut_at_operators(problem.answer, &used));
        EXPECT_EQ(std::ssize(used), options.operands);
        EXPECT_TRUE(std::is_permutation(used.begin(), used.end(), truth.at("numbers").begin(),
                                        truth.at("numbers").end()));
      } else {
        // A reward compares the whole answer, or its part behind the last step.
        EXPECT_EQ(truth.get<std::string>(), problem.answer.substr(problem.answer.rfind('=') + 1));
      }
      EXPECT_NE(problem.question.find("<answer>"), std::string::npos);
      longest = std::max(longest, problem.answer.size());
      shortest = std::min(shortest, problem.answer.size());
    }
    if (options.name == "multi_addition") {
      EXPECT_GT(longest, 6 * shortest);  // lengths vary widely
    }
  }
}

TEST(Tasks, WarmUpHasTheFormAndIsMostlyWrong) {
  // Most right answers by chance, of kDraws.
  const std::map<std::string, std::pair<int64_t, int64_t>> bounds = {
      {"copy", {0, 8}},         {"reverse", {0, 8}},     {"sort", {0, 8}},
      {"addition", {270, 330}}, {"countdown", {8, 120}}, {"multi_addition", {200, 360}}};
  for (const TaskOptions& options : all_options()) {
    const auto task = make_task(options);
    int64_t right_ones = 0;
    for (int64_t i = 0; i < kDraws; ++i) {
      Rng rng(static_cast<uint64_t>(i));
      const WarmUpExample example = task->draw_warm_up(&rng);
      bool right = false;
      EXPECT_TRUE(has_form(options, example.prompt, example.completion, &right))
          << example.prompt << example.completion;
      right_ones += right;
      if (std::count(example.prompt.begin(), example.prompt.end(), '+') < 3 &&
          options.name == "multi_addition") {
        EXPECT_TRUE(right) << example.prompt << example.completion;
      }
      // Sums of few digits are right; others are by chance alone.
      if (options.name == "addition" && std::ssize(example.prompt) - 2 <= options.digits + 1) {
        EXPECT_TRUE(right) << example.prompt << example.completion;
      }
    }
    const auto [least, most] = bounds.at(options.name);
    const bool large = options.name == "countdown" && options.operands > 3;
    EXPECT_GE(right_ones, large ? 0 : least) << options.name;
    EXPECT_LE(right_ones, most) << options.name;
  }
}

TEST(Tasks, ProblemsAreAFunctionOfSeedAndIndex) {
  for (const TaskOptions& options : all_options()) {
    const auto first = make_task(options), second = make_task(options);
    std::set<std::string> prompts, others;
    for (int64_t i = 20; i-- > 0;) {
      const Problem problem = problem_of(*first, kSeed, i);
      EXPECT_EQ(problem.prompt, problem_of(*second, kSeed, i).prompt);
      EXPECT_EQ(problem.answer, problem_of(*second, kSeed, i).answer);
      prompts.insert(problem.prompt);
      others.insert(problem_of(*first, kSeed + 1, i).prompt);
    }
    EXPECT_GT(prompts.size(), 10u) << options.name;
    EXPECT_NE(prompts, others) << options.name;
  }
}

TEST(Tasks, HeldOutProblemsAreNeverTrained) {
  for (const TaskOptions& options : all_options()) {
    const TaskProblems problems = draw_problems(options, kSeed, {600, 300, 600});
    ASSERT_EQ(problems.train.size(), 600u);
    ASSERT_EQ(problems.held_out.size(), 300u);
    ASSERT_EQ(problems.warm_up.size(), 600u);
    ASSERT_NO_THROW(draw_problems(options, kSeed, {find_task(options.name).train, 500, 1}));
    std::set<std::string> held_out, prompts;
    for (const Problem& problem : problems.held_out) {
      held_out.insert(problem.key);
      EXPECT_TRUE(prompts.insert(problem.prompt).second);
    }
    for (const Problem& problem : problems.train) {
      EXPECT_EQ(held_out.count(problem.key), 0u) << options.name << " " << problem.prompt;
      EXPECT_TRUE(prompts.insert(problem.prompt).second);
    }
    for (const WarmUpExample& example : problems.warm_up) {
      EXPECT_EQ(held_out.count(example.key), 0u) << options.name << " " << example.prompt;
    }
  }
}

TEST(Tasks, NumbersInAnotherOrderAreOneProblem) {
  std::map<std::string, std::set<std::string>> prompts;  // by key
  const auto task = make_task(complete_options({"countdown"}));
  for (int64_t i = 0; i < 40'000; ++i) {
    const Problem problem = problem_of(*task, kSeed, i);
    const size_t equals = problem.prompt.find('=');
    std::vector<int64_t> numbers = numbers_in(problem.prompt.substr(0, equals), ',');
    std::sort(numbers.begin(), numbers.end());
    prompts[problem.key].insert(problem.prompt);
    EXPECT_EQ(problem.key, fmt::format("{},{},{}{}", numbers[0], numbers[1], numbers[2],
                                       problem.prompt.substr(equals)));
  }
  EXPECT_EQ(prompts.at("1,2,4=5:").size(), 6u);
  EXPECT_EQ(prompts.at("1,2,4=7:").size(), 6u);
  EXPECT_GT(prompts.at("1,2,4=-5:").size(), 1u);
}

TEST(Tasks, ProductsAreEvaluatedBeforeSums) {
  EXPECT_EQ(value_of_expression("2+3*4"), 14);
  EXPECT_EQ(value_of_expression("3-5"), -2);
  EXPECT_EQ(value_of_expression("3-5*2*2+14"), -3);
  EXPECT_EQ(value_of_expression("17"), 17);
}

std::string message_of(const TaskOptions& options, const TaskSizes& sizes = {10, 10, 10}) {
  try {
    draw_problems(complete_options(options), kSeed, sizes);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Tasks, RefusesUnknownTasksAndOptions) {
  EXPECT_EQ(message_of({"revers"}),
            "[task] no task is called 'revers'; expected copy, reverse, sort, addition, "
            "multi_addition, countdown; try reverse");
  TaskOptions options{"reverse"};
  options.digits = 65;
  EXPECT_EQ(message_of(options), "[task] digits of reverse are 65; expected 1 to 64");
  options = {"sort"};
  options.operands = 3;
  EXPECT_EQ(message_of(options), "[task] sort has no number of operands; expected none");
  options = {"copy"};
  options.reversed = true;
  EXPECT_NE(message_of(options).find("copy has no reversed answers"), std::string::npos);
  options.reversed = false;
  options.operators = "+";
  EXPECT_NE(message_of(options).find("copy has no choice of operators"), std::string::npos);
  options = {"countdown"};
  for (const char* operators : {"+/", "++", "", "+-x"}) {
    options.operators = operators;
    EXPECT_NE(message_of(options).find("expected some of + - *"), std::string::npos) << operators;
  }
  options.operators = "*-+";
  EXPECT_EQ(message_of(options), "");
}

TEST(Tasks, TooFewProblemsAreCounted) {
  TaskOptions options{"copy"};
  options.digits = 2;
  const std::string message = message_of(options, {90, 20, 10});
  int64_t train = 0, held_out = 0;
  ASSERT_EQ(std::sscanf(message.c_str(),
                        "[task] copy with these options has %ld problems to train on and %ld held "
                        "out; expected 90 and 20;",
                        &train, &held_out),
            2)
      << message;
  EXPECT_EQ(train + std::min<int64_t>(held_out, 20), train + held_out);
  EXPECT_LE(train + held_out, 100);
  EXPECT_GT(train, 45);
  options.digits = 1;
  EXPECT_NE(message_of(options, {1, 20, 1}).find("try more digits"), std::string::npos);
}

TEST(TaskFiles, EveryCharacterIsAToken) {
  const data::Tokenizer tokenizer = task_tokenizer();
  EXPECT_LE(tokenizer.vocab_size(), 40);
  EXPECT_EQ(tokenizer.eos_id(), 0);
  EXPECT_EQ(tokenizer.token_bytes(0), "<|endoftext|>");
  for (const TaskOptions& options : all_options()) {
    const auto task = make_task(options);
    for (int64_t i = 0; i < 50; ++i) {
      const Problem problem = problem_of(*task, kSeed, i);
      const std::string text = problem.prompt + problem.answer;
      const std::vector<int32_t> ids = tokenizer.encode(text);
      EXPECT_EQ(ids.size(), text.size());
      EXPECT_EQ(tokenizer.decode(ids), text);
      EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = true}).size(), text.size() + 1);
    }
  }
}

TEST(TaskFiles, TheSameOptionsWriteTheSameBytes) {
  data::TempFolder folder;
  TaskFilesOptions options;
  options.task.name = "countdown";
  options.sizes = {50, 20, 30};
  options.folder = folder / "a";
  std::vector<std::string> texts;
  const std::vector<std::string> paths = write_task_files(options);
  for (const std::string& path : paths) {
    texts.push_back(read_file(path));
  }
  EXPECT_EQ(write_task_files(options), paths);
  for (size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(read_file(paths[i]), texts[i]) << paths[i];
  }
  const data::Tokenizer tokenizer = data::Tokenizer::load(folder / "a/tokenizer.json");
  EXPECT_EQ(tokenizer.hash(), task_tokenizer().hash());
  const auto config = nlohmann::json::parse(read_file(folder / "a/config.json"));
  EXPECT_EQ(config.at("vocab_size"), tokenizer.vocab_size());
  EXPECT_EQ(config.at("eos_token_id"), tokenizer.eos_id());
}

TEST(TaskFiles, TheModelHasPositionsForTheLongestAnswer) {
  data::TempFolder folder;
  TaskFilesOptions options;
  options.task.name = "multi_addition";
  options.task.operands = 20;
  options.task.digits = 5;
  options.sizes = {2, 2, 2};
  options.folder = folder / "a";
  write_task_files(options);
  const auto task = make_task(complete_options(options.task));
  const auto config = nlohmann::json::parse(read_file(folder / "a/config.json"));
  EXPECT_GT(config.at("max_position_embeddings").get<int64_t>(),
            task->longest_prompt() + task->longest_answer());
}

TEST(TaskFiles, LeavesFilesOfOthersAndOtherTrainings) {
  data::TempFolder folder;
  TaskFilesOptions options;
  options.task.name = "copy";
  options.sizes = {5, 5, 5};
  options.folder = folder / "a";
  folder.add("a/train.jsonl", "mine\n");
  EXPECT_THROW(write_task_files(options), Error);
  EXPECT_EQ(read_file(folder / "a/train.jsonl"), "mine\n");
  options.folder = folder / "b";
  write_task_files(options);
  options.seed = 2;
  write_task_files(options);  // no training yet
  make_dirs(folder / "b/warmup");
  write_task_files(options);  // the same options as the training's
  options.seed = 3;
  EXPECT_THROW(write_task_files(options), Error);
}

}  // namespace
}  // namespace hocket::rl

// SPDX-License-Identifier: Apache-2.0
// Implements: countdown (tasks.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/rng.h"
#include "rl/tasks.h"

namespace hocket::rl {

namespace {

class CountdownTask : public Task {
 public:
  explicit CountdownTask(const TaskOptions& options)
      : count_(options.operands), operators_(options.operators), digits_(options.digits) {
    for (int64_t i = 0; i < digits_; ++i) {
      largest_ = largest_ * 10 + 9;
    }
  }

  Problem draw(Rng* rng) const override {
    std::vector<int64_t> numbers;
    Problem out;
    const int64_t target = draw_target(rng, &numbers, &out.answer);
    out.prompt = prompt_of(numbers, target);
    out.ground_truth =
        fmt::format("{{\"target\":{},\"numbers\":[{}]}}", target, fmt::join(numbers, ","));
    std::vector<char> names(operators_.begin(), operators_.end());
    out.question = fmt::format(
        "Use each of the numbers {} once, and the operators {}, in an expression that equals {}. "
        "Write the expression alone between <answer> and </answer>.",
        fmt::join(numbers, ", "), fmt::join(names, " "), target);
    out.key = key_of(numbers, target);
    return out;
  }
  WarmUpExample draw_warm_up(Rng* rng) const override {
    std::vector<int64_t> numbers;
    std::string solution;
    const int64_t target = draw_target(rng, &numbers, &solution);
    return {prompt_of(numbers, target), draw_expression(numbers, rng), key_of(numbers, target)};
  }
  int64_t longest_prompt() const override {
    // A product of all numbers has the most digits.
    return count_ * (digits_ + 1) + count_ * digits_ + 2;
  }
  int64_t longest_answer() const override { return count_ * (digits_ + 1) - 1; }

 private:
  /// Draws numbers, and a target: the value of a random expression of them, which may be negative.
  int64_t draw_target(Rng* rng, std::vector<int64_t>* numbers, std::string* solution) const {
    numbers->clear();
    for (int64_t i = 0; i < count_; ++i) {
      numbers->push_back(rng->between(1, largest_));
    }
    *solution = draw_expression(*numbers, rng);
    return value_of_expression(*solution);
  }
  std::string draw_expression(std::vector<int64_t> numbers, Rng* rng) const {
    rng->shuffle(numbers);
    std::string out = std::to_string(numbers[0]);
    for (size_t i = 1; i < numbers.size(); ++i) {
      out += operators_[rng->below(operators_.size())];
      out += std::to_string(numbers[i]);
    }
    return out;
  }
  static std::string prompt_of(const std::vector<int64_t>& numbers, int64_t target) {
    return fmt::format("{}={}:", fmt::join(numbers, ","), target);
  }
  static std::string key_of(std::vector<int64_t> numbers, int64_t target) {
    std::sort(numbers.begin(), numbers.end());
    return prompt_of(numbers, target);
  }

  const int64_t count_;
  const std::string operators_;
  const int64_t digits_;
  int64_t largest_ = 0;
};

}  // namespace

int64_t value_of_expression(const std::string& expression) {
  // `sum` of the products before the one at hand, which is sign * product * number.
  int64_t sum = 0, sign = 1, product = 1, number = 0;
  for (const char c : expression + "+") {
    if (c >= '0' && c <= '9') {
      number = number * 10 + (c - '0');
      continue;
    }
    product *= number;
    number = 0;
    if (c == '*') continue;
    sum += sign * product;
    sign = c == '-' ? -1 : 1;
    product = 1;
  }
  return sum;
}

std::unique_ptr<Task> make_countdown_task(const TaskOptions& options) {
  return std::make_unique<CountdownTask>(options);
}

}  // namespace hocket::rl

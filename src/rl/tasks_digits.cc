// SPDX-License-Identifier: Apache-2.0
// Implements: copy, reverse and sort (tasks.h), whose answers are the prompt's digits in an order.
#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "rl/tasks.h"

namespace hocket::rl {

namespace {

/// Order of the digits; `letter` begins the prompt, so that a model can learn several tasks.
struct DigitOrder {
  char letter;
  const char* ask;  ///< a format of the digits
  std::string (*answer)(std::string digits);
  bool by_answer;  ///< prompts with the same answer are one problem
};

class DigitsTask : public Task {
 public:
  DigitsTask(const DigitOrder& order, int64_t digits) : order_(order), digits_(digits) {}

  Problem draw(Rng* rng) const override {
    const std::string digits = draw_digits(rng);
    Problem out;
    out.prompt = prompt_of(digits);
    out.answer = order_.answer(digits);
    out.ground_truth = '"' + out.answer + '"';
    out.question = fmt::format(fmt::runtime(order_.ask), digits) +
                   " Write the digits alone between <answer> and </answer>.";
    out.key = key_of(digits);
    return out;
  }
  WarmUpExample draw_warm_up(Rng* rng) const override {
    const std::string digits = draw_digits(rng);
    std::string any_order = digits;
    rng->shuffle(any_order);
    return {prompt_of(digits), any_order, key_of(digits)};
  }
  int64_t longest_prompt() const override { return digits_ + 2; }
  int64_t longest_answer() const override { return digits_; }

 private:
  std::string draw_digits(Rng* rng) const {
    std::string out;
    for (int64_t i = 0; i < digits_; ++i) {
      out += static_cast<char>('0' + rng->below(10));
    }
    return out;
  }
  std::string prompt_of(const std::string& digits) const { return order_.letter + digits + '='; }
  std::string key_of(const std::string& digits) const {
    return order_.by_answer ? order_.answer(digits) : digits;
  }

  const DigitOrder order_;
  const int64_t digits_;
};

std::string reversed(std::string digits) {
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string sorted(std::string digits) {
  std::sort(digits.begin(), digits.end());
  return digits;
}

}  // namespace

std::unique_ptr<Task> make_copy_task(const TaskOptions& options) {
  const auto same = [](std::string digits) { return digits; };
  return std::make_unique<DigitsTask>(DigitOrder{'c', "Repeat the digits {}.", same, false},
                                      options.digits);
}

std::unique_ptr<Task> make_reverse_task(const TaskOptions& options) {
  return std::make_unique<DigitsTask>(
      DigitOrder{'r', "Reverse the order of the digits {}.", reversed, false}, options.digits);
}

std::unique_ptr<Task> make_sort_task(const TaskOptions& options) {
  return std::make_unique<DigitsTask>(
      DigitOrder{'s', "Sort the digits {} from the smallest to the largest.", sorted, true},
      options.digits);
}

}  // namespace hocket::rl

// SPDX-License-Identifier: Apache-2.0
// Implements: addition and multi_addition (tasks.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/rng.h"
#include "rl/tasks.h"

namespace hocket::rl {

namespace {

int64_t power_of_ten(int64_t exponent) {
  int64_t out = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    out *= 10;
  }
  return out;
}

/// Returns a number of exactly so many digits; of one digit 0 to 9.
int64_t draw_number(int64_t digits, Rng* rng) {
  return rng->between(digits == 1 ? 0 : power_of_ten(digits - 1), power_of_ten(digits) - 1);
}

int64_t digits_of(int64_t number) { return static_cast<int64_t>(std::to_string(number).size()); }

/// Returns a number of the same digits in a random order, the first of them not 0. Of one digit:
/// any.
int64_t with_shuffled_digits(int64_t number, Rng* rng) {
  std::string digits = std::to_string(number);
  if (digits.size() == 1) return draw_number(1, rng);
  do {
    rng->shuffle(digits);
  } while (digits[0] == '0');
  return std::stoll(digits);
}

/// Returns numbers in their order as a key that does not depend on it.
std::string key_of(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return fmt::format("{}", fmt::join(numbers, "+"));
}

class AdditionTask : public Task {
 public:
  explicit AdditionTask(const TaskOptions& options)
      : digits_(options.digits), reversed_(options.reversed) {}

  Problem draw(Rng* rng) const override {
    const auto [first, second] = draw_operands(rng);
    Problem out;
    out.prompt = fmt::format("{}+{}=", first, second);
    out.answer = written(first + second);
    out.ground_truth = '"' + out.answer + '"';
    out.question = fmt::format(
        "Compute {} + {}.{} Write the number alone between <answer> and "
        "</answer>.",
        first, second, reversed_ ? " Reverse the order of the digits of the sum." : "");
    out.key = key_of({first, second});
    return out;
  }
  /// Three of four examples have few digits, at most one more than the longest number, and are
  /// right. The completion of the others is the sum of their numbers with shuffled digits: which
  /// digits belong together is left to learn.
  WarmUpExample draw_warm_up(Rng* rng) const override {
    if (digits_ > 1 && rng->below(4) < 3) {
      int64_t of_first = 0, of_second = 0;
      do {
        of_first = rng->between(1, digits_);
        of_second = rng->between(1, digits_);
      } while (of_first + of_second > digits_ + 1);
      const int64_t first = draw_number(of_first, rng), second = draw_number(of_second, rng);
      return {fmt::format("{}+{}=", first, second), written(first + second),
              key_of({first, second})};
    }
    auto [first, second] = draw_operands(rng);
    if (std::max(digits_of(first), digits_of(second)) < digits_) {
      second = draw_number(digits_, rng);
    }
    const int64_t other = with_shuffled_digits(first, rng) + with_shuffled_digits(second, rng);
    return {fmt::format("{}+{}=", first, second), written(other), key_of({first, second})};
  }
  int64_t longest_prompt() const override { return 2 * digits_ + 2; }
  int64_t longest_answer() const override { return digits_ + 1; }

 private:
  std::pair<int64_t, int64_t> draw_operands(Rng* rng) const {
    const int64_t least = std::min<int64_t>(2, digits_);
    const int64_t first = draw_number(rng->between(least, digits_), rng);
    return {first, draw_number(rng->between(least, digits_), rng)};
  }
  std::string written(int64_t number) const {
    std::string out = std::to_string(number);
    if (reversed_) {
      std::reverse(out.begin(), out.end());
    }
    return out;
  }

  const int64_t digits_;
  const bool reversed_;
};

class MultiAdditionTask : public Task {
 public:
  explicit MultiAdditionTask(const TaskOptions& options)
      : digits_(options.digits), operands_(options.operands) {}

  Problem draw(Rng* rng) const override {
    const std::vector<int64_t> numbers = draw_operands(operands_, rng);
    Problem out;
    out.prompt = prompt_of(numbers);
    const std::vector<int64_t> sums = sums_of(numbers);
    out.answer = steps_of(numbers, sums);
    out.ground_truth = fmt::format("\"{}\"", sums.back());
    out.question =
        fmt::format("Compute {} step by step. Write the sum alone between <answer> and </answer>.",
                    fmt::join(numbers, " + "));
    out.key = key_of(numbers);
    return out;
  }
  /// Half of the examples have few operands, and are right. With more operands a sum is one too
  /// small more often than right: the likeliest answer is wrong, and a drawn one is right at times.
  WarmUpExample draw_warm_up(Rng* rng) const override {
    const int64_t most = rng->below(2) == 0 ? std::min(operands_, kRightOperands) : operands_;
    const std::vector<int64_t> numbers = draw_operands(most, rng);
    std::vector<int64_t> sums = sums_of(numbers);
    if (std::ssize(numbers) > kRightOperands) {
      for (size_t i = 1; i < sums.size(); ++i) {
        const int64_t right = sums[i - 1] + numbers[i];
        const bool wrong = rng->below(5) < 3;
        sums[i] = wrong && right > 0 ? right - 1 : right;
      }
    }
    return {prompt_of(numbers), steps_of(numbers, sums), key_of(numbers)};
  }
  int64_t longest_prompt() const override { return operands_ * (digits_ + 1); }
  int64_t longest_answer() const override {
    const int64_t sum = digits_of(operands_ * (power_of_ten(digits_) - 1));
    return (operands_ - 1) * (2 * sum + digits_ + 3);  // "sum+number=sum,"
  }

 private:
  static constexpr int64_t kRightOperands = 3;  // of examples of the warm-up, at most

  std::vector<int64_t> draw_operands(int64_t most, Rng* rng) const {
    std::vector<int64_t> out(static_cast<size_t>(rng->between(2, most)));
    for (int64_t& number : out) {
      number = draw_number(rng->between(1, digits_), rng);
    }
    return out;
  }
  static std::string prompt_of(const std::vector<int64_t>& numbers) {
    return fmt::format("{}=", fmt::join(numbers, "+"));
  }
  /// Returns the sums of the first 1, 2, ... numbers.
  static std::vector<int64_t> sums_of(const std::vector<int64_t>& numbers) {
    std::vector<int64_t> out(numbers.size());
    std::partial_sum(numbers.begin(), numbers.end(), out.begin());
    return out;
  }
  /// Returns "3+14=17,17+15=32" of 3, 14, 15 and their sums.
  static std::string steps_of(const std::vector<int64_t>& numbers,
                              const std::vector<int64_t>& sums) {
    std::string out;
    for (size_t i = 1; i < numbers.size(); ++i) {
      out += fmt::format("{}{}+{}={}", i == 1 ? "" : ",", sums[i - 1], numbers[i], sums[i]);
    }
    return out;
  }

  const int64_t digits_, operands_;
};

}  // namespace

std::unique_ptr<Task> make_addition_task(const TaskOptions& options) {
  return std::make_unique<AdditionTask>(options);
}

std::unique_ptr<Task> make_multi_addition_task(const TaskOptions& options) {
  return std::make_unique<MultiAdditionTask>(options);
}

}  // namespace hocket::rl

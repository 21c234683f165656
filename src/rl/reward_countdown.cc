// SPDX-License-Identifier: Apache-2.0
// Implements: check_countdown (reward_parts.h).
#include <algorithm>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "rl/reward_parts.h"

namespace hocket::rl {

namespace {

constexpr int kMaxNesting = 100;  // parentheses and signs inside one another

/// A fraction in lowest terms, its denominator above 0. No value: a division by zero, or beyond 64
/// bits.
class Fraction {
 public:
  Fraction() = default;
  explicit Fraction(std::optional<int64_t> integer) : top_(integer.value_or(0)) {
    valid_ = integer.has_value();
  }

  bool equals(int64_t integer) const { return valid_ && bottom_ == 1 && top_ == integer; }
  Fraction negated() const { return of(valid_, -Wide{top_}, bottom_); }
  Fraction plus(const Fraction& b) const {
    // Both summands are below 2^126, so 128 bits hold the sum.
    return of(valid_ && b.valid_, Wide{top_} * b.bottom_ + Wide{b.top_} * bottom_,
              Wide{bottom_} * b.bottom_);
  }
  Fraction times(const Fraction& b) const {
    return of(valid_ && b.valid_, Wide{top_} * b.top_, Wide{bottom_} * b.bottom_);
  }
  Fraction divided_by(const Fraction& b) const {
    const Wide sign = b.top_ < 0 ? -1 : 1;
    return of(valid_ && b.valid_ && b.top_ != 0, sign * top_ * b.bottom_, sign * b.top_ * bottom_);
  }

 private:
  using Wide = __int128;

  static Fraction of(bool valid, Wide top, Wide bottom) {
    Fraction out;
    if (!valid) return out;
    Wide a = top < 0 ? -top : top, b = bottom;
    while (b != 0) {
      a = std::exchange(b, a % b);
    }
    top /= a;
    bottom /= a;
    // The smallest integer is left out: its negation has no 64 bits.
    constexpr Wide kMaxInteger = INT64_MAX;
    if (top > kMaxInteger || top < -kMaxInteger || bottom > kMaxInteger) return out;
    out.valid_ = true;
    out.top_ = static_cast<int64_t>(top);
    out.bottom_ = static_cast<int64_t>(bottom);
    return out;
  }

  bool valid_ = false;
  int64_t top_ = 0, bottom_ = 1;
};

/// Reads sum = product (+|- product)*, product = factor (*|/ factor)*, factor = sign factor, number
/// or (sum). Blanks may stand between all of them.
class CountdownReader {
 public:
  explicit CountdownReader(std::string_view text) : text_(text) {}

  /// Evaluates the text. Returns false if it is no expression.
  bool read(Fraction* value) {
    *value = sum();
    skip_blanks();
    return ok_ && at_ == text_.size();
  }
  /// Numbers in the order of the text; beyond 64 bits: none.
  const std::vector<std::optional<int64_t>>& numbers() const { return numbers_; }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) {
      ++at_;
    }
  }
  bool take(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  Fraction no_expression() {
    ok_ = false;
    return {};
  }

  Fraction sum() {
    Fraction value = product();
    while (ok_) {
      if (take('+')) {
        value = value.plus(product());
      } else if (take('-')) {
        value = value.plus(product().negated());
      } else {
        break;
      }
    }
    return value;
  }
  Fraction product() {
    Fraction value = factor();
    while (ok_) {
      if (take('*')) {
        value = value.times(factor());
      } else if (take('/')) {
        value = value.divided_by(factor());
      } else {
        break;
      }
    }
    return value;
  }
  Fraction factor() {
    if (!ok_ || depth_ == kMaxNesting) return no_expression();
    ++depth_;
    Fraction value;
    if (take('-')) {
      value = factor().negated();
    } else if (take('+')) {
      value = factor();
    } else if (take('(')) {
      value = sum();
      ok_ = ok_ && take(')');
    } else {
      value = number();
    }
    --depth_;
    return value;
  }
  Fraction number() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      ++at_;
    }
    const std::string_view digits = text_.substr(begin, at_ - begin);
    if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) return no_expression();
    int64_t value = 0;
    const bool fits = parse_int(digits, &value);
    numbers_.push_back(fits ? std::optional(value) : std::nullopt);
    return Fraction(numbers_.back());
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ok_ = true;
  std::vector<std::optional<int64_t>> numbers_;
};

}  // namespace

CountdownCheck check_countdown(std::string_view text, std::vector<int64_t> numbers,
                               int64_t target) {
  CountdownReader reader(text);
  Fraction value;
  CountdownCheck check;
  check.is_expression = reader.read(&value);
  if (!check.is_expression) return check;
  std::vector<std::optional<int64_t>> used = reader.numbers();
  std::sort(used.begin(), used.end());
  std::sort(numbers.begin(), numbers.end());
  check.uses_numbers = std::equal(used.begin(), used.end(), numbers.begin(), numbers.end());
  check.hits_target = value.equals(target);
  return check;
}

}  // namespace hocket::rl

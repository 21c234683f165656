// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/number_range.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "serve/grammar/pattern.h"

namespace hocket::serve::grammar {
namespace {

constexpr int64_t kMaxExponent = 400;
constexpr int64_t kMaxDivisor = 2000;
constexpr double kExactIntegers = 9007199254740992.0;  // 2^53: a double holds all integers below

/// Compares magnitudes: negative, zero or positive.
int compare_size(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);  // a prefix is smaller, as zeros are cut
}

/// Numbers >= 0 between two bounds.
struct Magnitudes {
  Bound low;
  std::optional<Bound> high;
};

/// Adds the texts of magnitudes to an automaton, digit by digit; `tight` digits equal a bound's so
/// far.
class MagnitudeNfa {
 public:
  MagnitudeNfa(CharNfa* nfa, const Magnitudes& range, bool integers, int32_t final)
      : nfa_(nfa), range_(range), integers_(integers), final_(final) {
    low_whole_ = range.low.value.whole.empty() ? "0" : range.low.value.whole;
    if (range.high) {
      high_whole_ = range.high->value.whole.empty() ? "0" : range.high->value.whole;
    }
    const size_t behind = std::max(range.low.value.fraction.size(),
                                   range.high ? range.high->value.fraction.size() : 0);
    max_fraction_ = std::max<size_t>(kMaxFractionDigits, behind + (behind > 0));
  }

  void add(int32_t start) {
    const size_t shortest = low_whole_.size();
    const size_t longest =
        range_.high ? high_whole_.size() : std::max<size_t>(kMaxWholeDigits, shortest + 1);
    for (size_t length = shortest; length <= longest; ++length) {
      const int32_t first = nfa_->add_state();
      nfa_->add_empty(start, first);
      add_whole(first, length);
    }
  }

 private:
  struct Tight {
    bool low, high;
    auto operator<=>(const Tight&) const = default;
  };

  static CodeSet digit(char c) { return {{static_cast<uint32_t>(c), static_cast<uint32_t>(c)}}; }

  void add_whole(int32_t first, size_t length) {
    std::map<Tight, int32_t> level;
    level[{length == low_whole_.size(), range_.high && length == high_whole_.size()}] = first;
    for (size_t at = 0; at < length; ++at) {
      std::map<Tight, int32_t> below;
      for (const auto& [tight, state] : level) {
        for (char c = at == 0 && length > 1 ? '1' : '0'; c <= '9'; ++c) {
          if (tight.low && c < low_whole_[at]) continue;
          if (tight.high && c > high_whole_[at]) continue;
          const Tight after{tight.low && c == low_whole_[at], tight.high && c == high_whole_[at]};
          const auto [it, made] = below.emplace(after, 0);
          if (made) {
            it->second = nfa_->add_state();
          }
          nfa_->add_edge(state, digit(c), it->second);
        }
      }
      level = std::move(below);
    }
    for (const auto& [tight, state] : level) {
      if (accepted(tight, 0)) {
        nfa_->add_empty(state, final_);
      }
      if (!integers_) {
        const int32_t point = nfa_->add_state();
        nfa_->add_edge(state, digit('.'), point);
        add_fraction(point, tight);
      }
    }
  }

  /// Returns whether the number may end with `at` digits of the fraction.
  bool accepted(const Tight& tight, size_t at) const {
    const bool at_low = at >= range_.low.value.fraction.size();
    if (tight.low && (!at_low || range_.low.exclusive)) return false;
    if (!tight.high) return true;
    return !range_.high->exclusive || at < range_.high->value.fraction.size();
  }

  void add_fraction(int32_t point, const Tight& start) {
    std::map<Tight, int32_t> level = {{start, point}};
    for (size_t at = 0; at < max_fraction_; ++at) {
      std::map<Tight, int32_t> below;
      for (const auto& [tight, state] : level) {
        // The states behind are shared by all lengths of the whole part.
        for (char c = '0'; c <= '9'; ++c) {
          const std::optional<Tight> after = next(tight, at, c);
          if (!after) continue;
          const auto [it, made] = fractions_.emplace(std::make_tuple(at, *after), 0);
          if (made) {
            it->second = nfa_->add_state();
            if (accepted(*after, at + 1)) {
              nfa_->add_empty(it->second, final_);
            }
            below.emplace(*after, it->second);
          }
          nfa_->add_edge(state, digit(c), it->second);
        }
      }
      level = std::move(below);
    }
  }

  std::optional<Tight> next(const Tight& tight, size_t at, char c) const {
    Tight after = tight;
    if (tight.low) {
      const std::string& low = range_.low.value.fraction;
      const char bound = at < low.size() ? low[at] : '0';
      if (c < bound) return std::nullopt;
      after.low = c == bound;
    }
    if (tight.high) {
      const std::string& high = range_.high->value.fraction;
      const char bound = at < high.size() ? high[at] : '0';
      if (c > bound) return std::nullopt;
      after.high = c == bound;
    }
    return after;
  }

  CharNfa* nfa_;
  const Magnitudes& range_;
  bool integers_;
  int32_t final_;
  std::string low_whole_, high_whole_;
  size_t max_fraction_;
  std::map<std::tuple<size_t, Tight>, int32_t> fractions_;
};

/// Returns the inclusive bound that a double makes of an exclusive one.
Bound inclusive(const Bound& bound, bool low, const std::string& where) {
  if (bound.value.is_zero()) return bound;  // the digits tell it from any other number
  const double value = std::strtod(bound.value.text().c_str(), nullptr);
  const double infinity = std::numeric_limits<double>::infinity();
  const double other = bound.exclusive ? std::nextafter(value, low ? infinity : -infinity) : value;
  const std::optional<Decimal> exact = decimal_of(other);
  if (!exact || (std::abs(value) >= kExactIntegers && decimal_of(value) != bound.value)) {
    fail(where,
         "bound of a number that no double holds; got {}; expected at most 2^53; try "
         "\"type\": \"integer\"",
         bound.value.text());
  }
  return {*exact, false};
}

/// Returns the limits with bounds that integers reach.
NumberLimits for_integers(NumberLimits limits) {
  if (limits.low) {
    Decimal& value = limits.low->value;
    const bool above = limits.low->exclusive || !value.is_integer();
    value = above ? value.floor().plus_one() : value;
    limits.low->exclusive = false;
  }
  if (limits.high) {
    Decimal& value = limits.high->value;
    // The largest integer below is the negated smallest integer above the negated bound.
    const Decimal mirrored = value.negated();
    const bool below = limits.high->exclusive || !value.is_integer();
    value = below ? mirrored.floor().plus_one().negated() : value;
    limits.high->exclusive = false;
  }
  return limits;
}

void require_digits(const std::optional<Bound>& bound, const std::string& where) {
  if (!bound) return;
  const Decimal& value = bound->value;
  if (value.whole.size() <= kMaxBoundDigits && value.fraction.size() <= kMaxBoundDigits) return;
  fail(where,
       "bound has too many digits; got {} before and {} behind the point; expected at most "
       "{}; try another bound",
       value.whole.size(), value.fraction.size(), kMaxBoundDigits);
}

CharDfa bounded_dfa(const NumberLimits& limits, bool integers, const std::string& where) {
  CharNfa nfa;
  const int32_t start = nfa.add_state();
  const int32_t final = nfa.add_state();
  const Bound zero{Decimal{}, false};
  const auto below = [](const Bound& bound) { return bound.value.negative; };
  // Numbers from 0 on.
  if (!limits.high || !below(*limits.high)) {
    const Bound low = limits.low && !below(*limits.low) ? *limits.low : zero;
    const Magnitudes range{low, limits.high};
    MagnitudeNfa(&nfa, range, integers, final).add(start);
  }
  // Numbers below 0; -0 is no integer that anybody writes.
  if (!limits.low || below(*limits.low)) {
    const int32_t sign = nfa.add_state();
    nfa.add_edge(start, {{'-', '-'}}, sign);
    Magnitudes range{{Decimal{}, true}, std::nullopt};
    if (limits.high && (below(*limits.high) || limits.high->value.is_zero())) {
      range.low = {limits.high->value.negated(),
                   limits.high->exclusive || limits.high->value.is_zero()};
    }
    if (limits.low) {
      range.high = Bound{limits.low->value.negated(), limits.low->exclusive};
    }
    MagnitudeNfa(&nfa, range, integers, final).add(sign);
  }
  std::optional<CharDfa> dfa = nfa.determinise(start, final);
  if (!dfa) fail(where, "bounds need too many states; try shorter ones");
  return *std::move(dfa);
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal out;
  size_t at = 0;
  bool negative = false;
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) {
    negative = text[at++] == '-';
  }
  int64_t point = 0;
  std::string digits;
  bool behind = false;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      behind = true;
      continue;
    }
    if (text[at] < '0' || text[at] > '9') return std::nullopt;
    digits.push_back(text[at]);
    point += behind ? 0 : 1;
  }
  if (at < text.size()) {
    const int64_t exponent = std::strtoll(std::string(text.substr(at + 1)).c_str(), nullptr, 10);
    if (exponent > kMaxExponent || exponent < -kMaxExponent) return std::nullopt;
    point += exponent;
  }
  while (point < 0) {
    digits.insert(digits.begin(), '0');
    ++point;
  }
  while (point > static_cast<int64_t>(digits.size())) {
    digits.push_back('0');
  }
  out.whole = digits.substr(0, static_cast<size_t>(point));
  out.fraction = digits.substr(static_cast<size_t>(point));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  out.negative = negative && !out.is_zero();
  return out;
}

Decimal Decimal::negated() const {
  Decimal out = *this;
  out.negative = !negative && !is_zero();
  return out;
}

Decimal Decimal::floor() const {
  Decimal out = *this;
  out.fraction.clear();
  out.negative = negative && !out.is_zero();
  if (!negative || is_integer()) return out;
  return out.negated().plus_one().negated();
}

Decimal Decimal::plus_one() const {
  Decimal out = *this;
  if (!negative) {
    size_t at = out.whole.size();
    while (at > 0 && out.whole[at - 1] == '9') {
      out.whole[--at] = '0';
    }
    if (at > 0) {
      ++out.whole[at - 1];
    } else {
      out.whole.insert(out.whole.begin(), '1');
    }
    return out;
  }
  size_t at = out.whole.size();
  while (out.whole[at - 1] == '0') {
    out.whole[--at] = '9';
  }
  --out.whole[at - 1];
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.negative = !out.is_zero();
  return out;
}

std::string Decimal::text() const {
  std::string out = negative ? "-" : "";
  out += whole.empty() ? "0" : whole;
  return fraction.empty() ? out : out + "." + fraction;
}

bool Decimal::operator<(const Decimal& other) const {
  if (negative != other.negative) return negative;
  const int order = compare_size(*this, other);
  return negative ? order > 0 : order < 0;
}

std::optional<Decimal> decimal_of(const nlohmann::ordered_json& number) {
  if (!number.is_number()) return std::nullopt;
  if (number.is_number_float() && !std::isfinite(number.get<double>())) return std::nullopt;
  return Decimal::parse(number.dump());
}

void NumberLimits::raise(const Bound& bound) {
  const bool tighter =
      !low || low->value < bound.value || (low->value == bound.value && bound.exclusive);
  if (tighter) {
    low = bound;
  }
}

void NumberLimits::lower(const Bound& bound) {
  const bool tighter =
      !high || bound.value < high->value || (high->value == bound.value && bound.exclusive);
  if (tighter) {
    high = bound;
  }
}

bool NumberLimits::matches(const Decimal& value) const {
  if (low && (value < low->value || (low->exclusive && value == low->value))) return false;
  if (high && (high->value < value || (high->exclusive && value == high->value))) return false;
  if (divisor == 0) return true;
  if (!value.is_integer()) return false;
  int64_t remainder = 0;
  for (char c : value.whole) {
    remainder = (remainder * 10 + (c - '0')) % divisor;
  }
  return remainder == 0;
}

bool NumberLimits::empty(bool integers) const {
  const NumberLimits limits = integers ? for_integers(*this) : *this;
  if (!limits.low || !limits.high) return false;
  if (limits.high->value < limits.low->value) return true;
  return limits.low->value == limits.high->value &&
         (limits.low->exclusive || limits.high->exclusive);
}

CharDfa number_dfa(const NumberLimits& limits, bool integers, const std::string& where) {
  integers = integers || limits.divisor != 0;
  const bool nonnegative = limits.low && limits.low->value.is_zero() && !limits.low->exclusive &&
                           !limits.high && limits.divisor == 0;
  if (!limits.bounded() || nonnegative) {
    const std::string whole =
        fmt::format("{}(0|[1-9][0-9]{{0,{}}})", nonnegative ? "" : "-?", kMaxWholeDigits - 1);
    if (integers) return pattern_dfa("^" + whole + "$", where);
    // 10^18 times the largest exponent is a finite double.
    return pattern_dfa("^" + whole + fmt::format("([.][0-9]{{1,{}}})?", kMaxFractionDigits) +
                           "([eE]([+]?([0-9]{1,2}|1[0-9]{2}|2[0-7][0-9])|-[0-9]{1,3}))?$",
                       where);
  }
  NumberLimits exact = limits;
  if (integers) {
    exact = for_integers(limits);
  } else {
    if (exact.low) {
      exact.low = inclusive(*limits.low, /*low=*/true, where);
    }
    if (exact.high) {
      exact.high = inclusive(*limits.high, /*low=*/false, where);
    }
  }
  require_digits(exact.low, where);
  require_digits(exact.high, where);
  CharDfa dfa = bounded_dfa(exact, integers, where);
  if (limits.divisor == 0) return dfa;
  std::optional<CharDfa> multiples;
  if (limits.divisor <= kMaxDivisor) {
    multiples =
        dfa_combine(dfa, dfa_of_multiples(static_cast<int32_t>(limits.divisor)), DfaOp::both);
  }
  if (!multiples) {
    fail(where, "multipleOf needs too many states; got {}; expected at most {}", limits.divisor,
         kMaxDivisor);
  }
  return *std::move(multiples);
}

}  // namespace hocket::serve::grammar

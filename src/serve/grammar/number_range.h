// SPDX-License-Identifier: Apache-2.0
// Numbers of JSON between bounds, digit by digit and exact.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "serve/grammar/char_dfa.h"

namespace hocket::serve::grammar {

/// A decimal number of any length; zero is never negative.
struct Decimal {
  bool negative = false;
  std::string whole;     ///< digits before the point, without leading zeros: empty below 1
  std::string fraction;  ///< digits behind it, without trailing zeros

  /// Reads the text of a JSON number. None: an exponent beyond 400.
  static std::optional<Decimal> parse(std::string_view text);
  bool is_zero() const { return whole.empty() && fraction.empty(); }
  bool is_integer() const { return fraction.empty(); }
  Decimal negated() const;
  Decimal floor() const;
  Decimal plus_one() const;  ///< Requires: is_integer().
  std::string text() const;
  bool operator==(const Decimal&) const = default;
  bool operator<(const Decimal& other) const;
};

/// The shortest decimal text that reads as this number; also of a double.
std::optional<Decimal> decimal_of(const nlohmann::ordered_json& number);

struct Bound {
  Decimal value;
  bool exclusive = false;
};

/// Limits of `type: number` or `integer`.
struct NumberLimits {
  std::optional<Bound> low, high;
  int64_t divisor = 0;  ///< multipleOf; 0: none

  /// Keeps the tighter of two bounds.
  void raise(const Bound& bound);
  void lower(const Bound& bound);
  bool bounded() const { return low || high || divisor != 0; }
  bool matches(const Decimal& value) const;
  /// Returns whether no number is within both bounds.
  bool empty(bool integers) const;
};

/// Digits that are written before and behind the point, at most: integers are within 64 bits.
constexpr int kMaxWholeDigits = 18, kMaxFractionDigits = 24;
/// The same where a bound has more of them.
constexpr int kMaxBoundDigits = 60;

/// Automaton of the numbers within the limits, written without an exponent unless there are none.
/// `integers`: only integers, without a point. Throws Error with `where`: digits beyond
/// kMaxBoundDigits, bounds that a double cannot hold, a divisor that needs too many states.
CharDfa number_dfa(const NumberLimits& limits, bool integers, const std::string& where);

}  // namespace hocket::serve::grammar

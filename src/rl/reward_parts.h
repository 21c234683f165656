// SPDX-License-Identifier: Apache-2.0
// Parts that several rewards are made of: patterns, the extracted part of an answer, ground truths.
// Everything here may be called concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rl/reward.h"

namespace hocket::rl {

/// The rules: exact, regex, gsm8k, countdown, digits, length, json_schema.
std::unique_ptr<Reward> make_rule_reward(const engine::RewardSection& section,
                                         const std::string& where);
/// The rule json_schema.
std::unique_ptr<Reward> make_schema_reward(const engine::RewardSection& section,
                                           const std::string& where);
/// A command that reads and writes lines.
std::unique_ptr<Reward> make_exec_reward(const engine::RewardSection& section,
                                         const std::string& where);
/// A judge behind an OpenAI server.
std::unique_ptr<Reward> make_http_reward(const engine::RewardSection& section,
                                         const std::string& where);

/// A regular expression of a user's, in PCRE2's dialect, over UTF-8. Bytes that are not UTF-8 match
/// nothing.
class TextPattern {
 public:
  /// Throws Error, in the name of `where`, unless it compiles. `key` names it.
  TextPattern(const std::string& pattern, const std::string& key, const std::string& where);
  bool has_group() const { return groups_ > 0; }
  /// Returns the last match's first group that took part, or without groups the whole match. None:
  /// no match. The view is into `text`. Throws Error if the matcher gives up.
  std::optional<std::string_view> last_match(std::string_view text) const;

 private:
  std::string pattern_;
  std::shared_ptr<void> code_;
  uint32_t groups_ = 0;
};

/// The part of an answer that a rule compares: RewardSection::extract.
class AnswerPart {
 public:
  /// Throws Error for an unknown word, and for after: without a text.
  AnswerPart(const std::string& extract, const std::string& where);
  bool is_auto() const { return kind_ == Kind::automatic; }
  bool is_tagged() const { return kind_ == Kind::answer; }
  /// Returns the part without blanks around it; none: the answer lacks the tags or the text.
  std::optional<std::string_view> of(std::string_view answer) const;

 private:
  enum class Kind : uint8_t { automatic, all, last_line, answer, after };
  Kind kind_ = Kind::automatic;
  std::string text_;  // of after
};

/// Returns the inside of the last <answer> that is closed, up to its </answer>; none: there is
/// none.
std::optional<std::string_view> tagged_answer(std::string_view answer);

/// Returns the texts that a ground truth allows: a text or number, or those of a list. Throws Error
/// for none and for other types.
std::vector<std::string> allowed_texts(const Prompt& prompt, const char* reward);

/// Returns "none", "the text \"x\"", "an object", ...: a JSON value in an error.
std::string shown_value(const nlohmann::ordered_json& value);

/// The expression of the game countdown: which numbers it has, and whether it gives the target.
struct CountdownCheck {
  bool is_expression = false;
  bool uses_numbers = false;  ///< every given number exactly once, and no other
  bool hits_target = false;   ///< exactly, as a fraction
};
/// Evaluates integers, + - * /, signs and parentheses. A division by zero, a number beyond 64 bits
/// and a fraction beyond 64 bits hit no target.
CountdownCheck check_countdown(std::string_view text, std::vector<int64_t> numbers, int64_t target);

}  // namespace hocket::rl

// SPDX-License-Identifier: Apache-2.0
// Implements: make_rule_reward (reward_parts.h). docs/rewards.md has every rule's definition with
// examples.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "rl/reward_parts.h"

namespace hocket::rl {

namespace {

using OrderedJson = nlohmann::ordered_json;
using RuleSection = engine::RewardSection;

constexpr std::string_view kGsm8kMark = "#### ";
constexpr size_t kGsm8kTail = 300;  // characters of an answer that verl looks at

RewardPart rule_part(double score) { return {.score = score, .error = {}, .details = {}}; }

bool all_of_chars(std::string_view text, std::string_view chars) {
  return !text.empty() && text.find_first_not_of(chars) == std::string_view::npos;
}

class ExactRule : public Reward {
 public:
  ExactRule(const RuleSection& section, const std::string& where) : part_(section.extract, where) {}
  RewardPart score(const Scored& scored) override {
    const std::vector<std::string> texts = allowed_texts(scored.prompt, "exact");
    const std::optional<std::string_view> got = part_.of(scored.sample.text);
    return rule_part(got && std::find(texts.begin(), texts.end(), *got) != texts.end() ? 1 : 0);
  }

 private:
  const AnswerPart part_;
};

class RegexRule : public Reward {
 public:
  RegexRule(const RuleSection& section, const std::string& where)
      : part_(section.extract, where), pattern_(section.pattern, "pattern", where) {}
  RewardPart score(const Scored& scored) override {
    std::vector<std::string> texts;
    if (pattern_.has_group()) {
      texts = allowed_texts(scored.prompt, "regex");
    }
    const std::optional<std::string_view> got = part_.of(scored.sample.text);
    const std::optional<std::string_view> found = got ? pattern_.last_match(*got) : std::nullopt;
    if (!found) return rule_part(0);
    const bool is_right =
        !pattern_.has_group() || std::find(texts.begin(), texts.end(), trim(*found)) != texts.end();
    return rule_part(is_right ? 1 : 0);
  }

 private:
  const AnswerPart part_;
  const TextPattern pattern_;
};

/// Returns the number at the beginning of a text, as verl's pattern `-?[0-9.,]+` reads it, without
/// its commas; none: there is none. `*rest` is the text behind it.
std::optional<std::string> gsm8k_number(std::string_view text, std::string_view* rest) {
  const size_t digits = text.starts_with('-') ? 1 : 0;
  const size_t end = std::min(text.find_first_not_of("0123456789.,", digits), text.size());
  if (end == digits) return std::nullopt;
  *rest = text.substr(end);
  std::string number(text.substr(0, end));
  std::erase(number, ',');
  return number;
}

/// Returns the number behind the last "#### " that has one.
std::optional<std::string> marked_number(std::string_view text) {
  for (size_t at = text.rfind(kGsm8kMark); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : text.rfind(kGsm8kMark, at - 1)) {
    std::string_view rest;
    if (auto number = gsm8k_number(text.substr(at + kGsm8kMark.size()), &rest)) return number;
  }
  return std::nullopt;
}

/// Returns the last `count` characters; a byte that is not UTF-8 is a character.
std::string_view last_characters(std::string_view text, size_t count) {
  std::vector<size_t> begins;
  for (size_t at = 0; at < text.size();
       at += static_cast<size_t>(std::max(1, utf8_length(text, at)))) {
    begins.push_back(at);
  }
  return begins.size() > count ? text.substr(begins[begins.size() - count]) : text;
}

/// verl's reward_score/gsm8k.py, method strict.
class Gsm8kRule : public Reward {
 public:
  Gsm8kRule(const RuleSection& section, const std::string& where)
      : part_(section.extract, where), format_score_(section.format_score) {}
  RewardPart score(const Scored& scored) override {
    const std::string truth = truth_of(scored.prompt);
    std::optional<std::string> number;
    if (part_.is_auto()) {
      number = marked_number(last_characters(scored.sample.text, kGsm8kTail));
    } else if (const std::optional<std::string_view> got = part_.of(scored.sample.text)) {
      std::string_view rest;
      number = gsm8k_number(*got, &rest);
      if (!rest.empty()) {
        number.reset();
      }
    }
    if (!number) return rule_part(0);
    return rule_part(*number == truth ? 1 : format_score_);
  }

 private:
  static std::string truth_of(const Prompt& prompt) {
    const OrderedJson& truth = prompt.ground_truth;
    if (truth.is_number_integer()) return truth.dump();
    if (truth.is_string()) {
      const std::string& text = truth.get_ref<const std::string&>();
      std::string_view rest = "-";
      if (text.find(kGsm8kMark) != std::string::npos) {
        if (auto number = marked_number(text)) return *number;
      } else if (auto number = gsm8k_number(trim(text), &rest); number && rest.empty()) {
        return *number;
      }
    }
    fail("gsm8k",
         "the ground truth of prompt {} is {}; expected a number, or a solution with #### and one",
         prompt.index, shown_value(truth));
  }

  const AnswerPart part_;
  const double format_score_;
};

/// TinyZero's reward_score/countdown.py, with exact fractions.
class CountdownRule : public Reward {
 public:
  CountdownRule(const RuleSection& section, const std::string& where)
      : part_(section.extract == "auto" ? "answer" : section.extract, where),
        format_score_(section.format_score) {}
  RewardPart score(const Scored& scored) override {
    const int64_t target = target_of(scored.prompt);
    std::vector<int64_t> numbers = numbers_of(scored.prompt);
    const std::optional<std::string_view> got = part_.of(scored.sample.text);
    if (!got) return rule_part(0);
    const CountdownCheck check = check_countdown(*got, std::move(numbers), target);
    if (check.uses_numbers && check.hits_target) return rule_part(1);
    // The tags are the form, or where there are none, a well-formed expression.
    return rule_part(part_.is_tagged() || check.is_expression ? format_score_ : 0);
  }

 private:
  /// Returns a value of the ground truth, or of the data's line without one.
  static const OrderedJson& value_of(const Prompt& prompt,
                                     std::initializer_list<const char*> keys) {
    const bool own = !prompt.ground_truth.is_null();
    const OrderedJson& object = own ? prompt.ground_truth : prompt.columns;
    if (object.is_object()) {
      for (const char* key : keys) {
        const auto at = object.find(key);
        if (at != object.end()) return *at;
      }
    }
    fail("countdown",
         "prompt {} has no {}; expected the ground truth {{target, numbers}}, or such columns",
         prompt.index, *keys.begin());
  }
  /// Returns an integer, also if it is written as 24.0.
  static int64_t integer_of(const OrderedJson& value, const Prompt& prompt, const char* name) {
    const bool is_integer = value.is_number_integer() &&
                            !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
    if (is_integer) return value.get<int64_t>();
    constexpr double kMaxExactInteger = 9007199254740992;  // 2^53: doubles up to here are exact
    const double number = value.is_number_float() ? value.get<double>() : NAN;
    if (std::fabs(number) <= kMaxExactInteger && number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
    fail("countdown", "{} of prompt {} is {}; expected an integer", name, prompt.index,
         shown_value(value));
  }
  static int64_t target_of(const Prompt& prompt) {
    return integer_of(value_of(prompt, {"target"}), prompt, "target");
  }
  static std::vector<int64_t> numbers_of(const Prompt& prompt) {
    const OrderedJson& list = value_of(prompt, {"numbers", "nums"});
    if (!list.is_array() || list.empty()) {
      fail("countdown", "numbers of prompt {} are {}; expected a list of integers", prompt.index,
           shown_value(list));
    }
    std::vector<int64_t> out;
    for (const OrderedJson& value : list) {
      out.push_back(integer_of(value, prompt, "a number"));
    }
    return out;
  }

  const AnswerPart part_;
  const double format_score_;
};

class DigitsRule : public Reward {
 public:
  DigitsRule(const RuleSection& section, const std::string& where)
      : part_(section.extract, where) {}
  RewardPart score(const Scored& scored) override {
    const std::string right = truth_of(scored.prompt);
    const std::string_view got = part_.of(scored.sample.text).value_or("");
    size_t hits = 0;
    for (size_t i = 0; i < std::min(right.size(), got.size()); ++i) {
      hits += right[i] == got[i] ? 1 : 0;
    }
    // Divided by the longer one, so that nothing is gained by going on.
    const double share =
        static_cast<double>(hits) / static_cast<double>(std::max(right.size(), got.size()));
    return rule_part(got == right ? 2 : share);
  }

 private:
  static std::string truth_of(const Prompt& prompt) {
    const OrderedJson& truth = prompt.ground_truth;
    if (truth.is_string() && all_of_chars(truth.get_ref<const std::string&>(), "0123456789")) {
      return truth.get<std::string>();
    }
    if (truth.is_number_unsigned() || (truth.is_number_integer() && truth.get<int64_t>() >= 0)) {
      return truth.dump();
    }
    fail("digits", "the ground truth of prompt {} is {}; expected digits", prompt.index,
         shown_value(truth));
  }

  const AnswerPart part_;
};

class LengthRule : public Reward {
 public:
  LengthRule(const RuleSection& section, const std::string& where)
      : target_(static_cast<double>(section.target_length)) {
    if (section.target_length <= 0) fail(where, "length needs target_length, at least 1");
  }
  RewardPart score(const Scored& scored) override {
    const auto length = static_cast<double>(scored.sample.tokens.size());
    return rule_part(std::max(0.0, 1 - std::fabs(length - target_) / target_));
  }

 private:
  const double target_;
};

}  // namespace

std::unique_ptr<Reward> make_rule_reward(const engine::RewardSection& section,
                                         const std::string& where) {
  if (section.type == "exact") return std::make_unique<ExactRule>(section, where);
  if (section.type == "regex") {
    if (section.pattern.empty()) fail(where, "regex needs pattern");
    return std::make_unique<RegexRule>(section, where);
  }
  if (section.type == "gsm8k") return std::make_unique<Gsm8kRule>(section, where);
  if (section.type == "countdown") return std::make_unique<CountdownRule>(section, where);
  if (section.type == "digits") return std::make_unique<DigitsRule>(section, where);
  if (section.type == "length") return std::make_unique<LengthRule>(section, where);
  if (section.type == "json_schema") return make_schema_reward(section, where);
  fail(where, "type is {}; expected a rule, exec or http", quote(section.type));
}

}  // namespace hocket::rl

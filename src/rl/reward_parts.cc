// SPDX-License-Identifier: Apache-2.0
#include "rl/reward_parts.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket::rl {

namespace {

// Steps of the matcher from one place of a text: some 20 ms.
constexpr uint32_t kMaxMatchSteps = 1'000'000;
constexpr std::string_view kOpen = "<answer>", kClose = "</answer>", kAfter = "after:";

std::string pattern_message(int code) {
  std::array<PCRE2_UCHAR, 256> text;
  if (pcre2_get_error_message(code, text.data(), text.size()) < 0) {
    return fmt::format("error {}", code);
  }
  return reinterpret_cast<const char*>(text.data());
}

std::string_view last_line_of(std::string_view answer) {
  const std::string_view text = trim(answer);
  const size_t end = text.find_last_of('\n');
  return end == std::string_view::npos ? text : trim(text.substr(end + 1));
}

}  // namespace

TextPattern::TextPattern(const std::string& pattern, const std::string& key,
                         const std::string& where)
    : pattern_(pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  const uint32_t options =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                         pattern.size(), options, &error, &at, nullptr);
  if (code == nullptr) {
    fail(where, "{} {} is no regular expression: {} at character {}", key, quote(pattern),
         pattern_message(error), at);
  }
  code_ = std::shared_ptr<void>(
      code, [](void* made) { pcre2_code_free(static_cast<pcre2_code*>(made)); });
  pcre2_pattern_info(code, PCRE2_INFO_CAPTURECOUNT, &groups_);
}

std::optional<std::string_view> TextPattern::last_match(std::string_view text) const {
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  HOCKET_CHECK(data && context, "out of memory");
  pcre2_set_match_limit(context.get(), kMaxMatchSteps);
  std::optional<std::string_view> found;
  for (size_t from = 0; from <= text.size();) {
    const int count = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  from, 0, data.get(), context.get());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      fail_run("reward", "the pattern {} gave up on an answer: {}", quote(pattern_),
               pattern_message(count));
    }
    const PCRE2_SIZE* const spans = pcre2_get_ovector_pointer(data.get());
    int group = groups_ == 0 ? 0 : 1;
    while (group < count && spans[2 * group] == PCRE2_UNSET) {
      ++group;
    }
    // \K may put the beginning of a match behind its end.
    found = std::string_view();
    if (group < count && spans[2 * group] <= spans[2 * group + 1]) {
      found = text.substr(spans[2 * group], spans[2 * group + 1] - spans[2 * group]);
    }
    const size_t end = std::max(spans[0], spans[1]);
    const bool is_empty = end <= from && spans[0] >= spans[1];
    from = is_empty ? end + static_cast<size_t>(std::max(1, utf8_length(text, end))) : end;
  }
  return found;
}

AnswerPart::AnswerPart(const std::string& extract, const std::string& where) {
  if (extract == "auto") {
    kind_ = Kind::automatic;
  } else if (extract == "all") {
    kind_ = Kind::all;
  } else if (extract == "last_line") {
    kind_ = Kind::last_line;
  } else if (extract == "answer") {
    kind_ = Kind::answer;
  } else if (extract.starts_with(kAfter) && extract.size() > kAfter.size()) {
    kind_ = Kind::after;
    text_ = extract.substr(kAfter.size());
  } else {
    fail(where, "extract is {}; expected auto, all, last_line, answer or after:TEXT",
         quote(extract));
  }
}

std::optional<std::string_view> AnswerPart::of(std::string_view answer) const {
  switch (kind_) {
    case Kind::automatic:
    case Kind::all:
      return trim(answer);
    case Kind::last_line:
      return last_line_of(answer);
    case Kind::answer:
      return tagged_answer(answer);
    case Kind::after:
      break;
  }
  const size_t at = answer.rfind(text_);
  if (at == std::string_view::npos) return std::nullopt;
  return trim(answer.substr(at + text_.size()));
}

std::optional<std::string_view> tagged_answer(std::string_view answer) {
  const size_t last = answer.rfind(kClose);
  if (last == std::string_view::npos) return std::nullopt;
  const size_t open = answer.substr(0, last).rfind(kOpen);
  if (open == std::string_view::npos) return std::nullopt;
  const size_t begin = open + kOpen.size();
  return trim(answer.substr(begin, answer.find(kClose, begin) - begin));
}

std::string shown_value(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "none";
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return "the text " + quote(value.get_ref<const std::string&>(), 40);
  return value.dump();
}

std::vector<std::string> allowed_texts(const Prompt& prompt, const char* reward) {
  const nlohmann::ordered_json& truth = prompt.ground_truth;
  std::vector<std::string> texts;
  const auto add = [&](const nlohmann::ordered_json& value) {
    if (value.is_string()) {
      texts.emplace_back(trim(value.get_ref<const std::string&>()));
    } else if (value.is_number()) {
      texts.push_back(value.dump());
    } else {
      fail(reward,
           "the ground truth of prompt {} is {}; expected a text, a number or a list of them",
           prompt.index, shown_value(value));
    }
  };
  if (!truth.is_array()) {
    add(truth);
    return texts;
  }
  for (const nlohmann::ordered_json& value : truth) {
    add(value);
  }
  if (texts.empty()) fail(reward, "the ground truth of prompt {} is an empty list", prompt.index);
  return texts;
}

}  // namespace hocket::rl

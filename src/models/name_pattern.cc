// SPDX-License-Identifier: Apache-2.0
#include "models/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "base/error.h"
#include "base/text.h"

namespace hocket::models {

namespace {

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return fmt::format("error {}", code);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

NamePattern::NamePattern(const std::string& pattern, const std::string& key,
                         const std::string& where)
    : pattern_(pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  auto* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &at, nullptr);
  if (code == nullptr) {
    fail(where, "{} {} is no regular expression: {} at character {}", key, quote(pattern),
         message_of(error), at);
  }
  code_ = std::shared_ptr<void>(
      code, [](void* made) { pcre2_code_free(static_cast<pcre2_code*>(made)); });
}

bool NamePattern::matches(std::string_view name) const {
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                                data.get(), nullptr);
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
    fail("adapter", "the regular expression {} gave up: {}", quote(pattern_), message_of(found));
  }
  return found >= 0;
}

}  // namespace hocket::models

// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket::data {

const char* const kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// Unicode's White_Space, which Oniguruma's \s is; PCRE2's has U+180E besides.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// The pattern with kSpaces in place of \s and \S. Inside a class the list goes in without brackets
// of its own; \S there has no such form and stays, as does every other escape.
std::string with_our_spaces(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
      } else if (next == 'S' && !in_class) {
        out += fmt::format("[^{}]", kSpaces);
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[') {
      in_class = true;
    }
    if (c == ']') {
      in_class = false;
    }
    out += c;
  }
  return out;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) < 0 ? fmt::format("error {}", code)
                                                              : reinterpret_cast<char*>(text);
}

}  // namespace

Pretokenizer::Pretokenizer(const std::string& pattern) : pattern_(pattern) {
  if (pattern.empty()) return;
  if (pattern.find("&&") != std::string::npos) {
    fail("tokenizer", "intersections of character classes are not supported; got {}",
         quote(pattern));
  }
  const std::string ours = with_our_spaces(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr) {
    fail("tokenizer", "the pre-tokenizer's regular expression does not compile: {}; got {}",
         pcre2_message(error), quote(pattern));
  }
  code_ = code;
  jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}

Pretokenizer::~Pretokenizer() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

Pretokenizer::Cursor::Cursor(const Pretokenizer& owner) : owner_(owner) {
  if (owner.code_ == nullptr) return;
  match_data_ = pcre2_match_data_create(1, nullptr);
  HOCKET_CHECK(match_data_ != nullptr, "out of memory");
}

Pretokenizer::Cursor::~Cursor() {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(match_data_));
}

void Pretokenizer::Cursor::start(std::string_view text) {
  text_ = text;
  at_ = valid_begin_ = 0;
  found_begin_ = found_end_ = 0;
  valid_end_ = owner_.code_ == nullptr ? text.size() : utf8_valid_until(text, 0);
}

// Looks for the next non-empty match in [at_, valid_end_).
bool Pretokenizer::Cursor::match() {
  const auto* code = static_cast<const pcre2_code*>(owner_.code_);
  auto* data = static_cast<pcre2_match_data*>(match_data_);
  // A subject of its own for each stretch: looking back must not meet malformed bytes.
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data() + valid_begin_);
  const size_t size = valid_end_ - valid_begin_, from = at_ - valid_begin_;
  const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int rc = owner_.jit_ ? pcre2_jit_match(code, subject, size, from, options, data, nullptr)
                       : pcre2_match(code, subject, size, from, options, data, nullptr);
  // The JIT's own stack (32 KiB) can be too small where the interpreter's heap is not.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code, subject, size, from, options | PCRE2_NO_JIT, data, nullptr);
  }
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) {
    fail("tokenizer", "the pre-tokenizer's regular expression gave up: {}; got {}",
         pcre2_message(rc), quote(owner_.pattern_));
  }
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data);
  found_begin_ = valid_begin_ + span[0];
  found_end_ = valid_begin_ + span[1];
  HOCKET_CHECK(found_begin_ >= at_ && found_end_ > found_begin_, "match [{}, {}) from {}",
               found_begin_, found_end_, at_);
  return true;
}

bool Pretokenizer::Cursor::next(std::string_view* word) {
  if (at_ == text_.size()) return false;
  size_t end;
  if (at_ == valid_end_ && owner_.code_ != nullptr) {
    // Not UTF-8 here: one word up to the next well-formed character.
    end = at_;
    while (end < text_.size() && utf8_length(text_, end) == 0) {
      ++end;
    }
    valid_begin_ = end;
    valid_end_ = utf8_valid_until(text_, end);
    found_begin_ = found_end_ = end;
  } else if (found_end_ > at_) {
    end = found_end_;
  } else if (match_data_ == nullptr || !match()) {
    end = valid_end_;
  } else {
    end = found_begin_ > at_ ? found_begin_ : found_end_;
  }
  *word = text_.substr(at_, end - at_);
  at_ = end;
  return true;
}

}  // namespace hocket::data

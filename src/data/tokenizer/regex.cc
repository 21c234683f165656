// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/tokenizer/regex_syntax.h"
#include "data/tokenizer/tokenizer_spec.h"

namespace hocket::data {

const char* const kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) < 0 ? fmt::format("error {}", code)
                                                              : reinterpret_cast<char*>(text);
}

}  // namespace

std::string regex_escape(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (std::string_view(R"(\^$.|?*+()[]{}-#&~ )").find(c) != std::string_view::npos) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  if (pattern.empty()) return;
  const std::string ours = pcre2_syntax(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  HOCKET_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  // Ruby's ^ and $ are those of lines.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(), options,
                             &error, &at, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    fail("tokenizer", "the regular expression does not compile: {}; got {}", pcre2_message(error),
         quote(pattern));
  }
  code_ = code;
  jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  uint32_t empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
  may_be_empty_ = empty != 0;
}

Regex::~Regex() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

Regex::Regex(Regex&& other) noexcept
    : pattern_(std::move(other.pattern_)),
      code_(std::exchange(other.code_, nullptr)),
      jit_(other.jit_),
      may_be_empty_(other.may_be_empty_) {}

Regex::Cursor::Cursor(const Regex& owner) : owner_(&owner) {
  if (owner.code_ == nullptr) return;
  match_data_ = pcre2_match_data_create(1, nullptr);
  HOCKET_CHECK(match_data_ != nullptr, "out of memory");
}

Regex::Cursor::~Cursor() { pcre2_match_data_free(static_cast<pcre2_match_data*>(match_data_)); }

Regex::Cursor::Cursor(Cursor&& other) noexcept
    : owner_(other.owner_), match_data_(std::exchange(other.match_data_, nullptr)) {}

void Regex::Cursor::start(std::string_view text) {
  text_ = text;
  at_ = valid_begin_ = 0;
  found_ = false;
  exhausted_ = match_data_ == nullptr;
  last_end_ = std::string::npos;
  valid_end_ = exhausted_ ? text.size() : utf8_valid_until(text, 0);
}

// Looks for the next match in [at_, valid_end_): one of nothing does not follow a match at once.
bool Regex::Cursor::match() {
  const auto* code = static_cast<const pcre2_code*>(owner_->code_);
  auto* data = static_cast<pcre2_match_data*>(match_data_);
  // A subject of its own for each stretch: looking back must not meet malformed bytes.
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data() + valid_begin_);
  const size_t size = valid_end_ - valid_begin_;
  for (size_t from = at_ - valid_begin_; from <= size;) {
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = owner_->jit_ ? pcre2_jit_match(code, subject, size, from, options, data, nullptr)
                          : pcre2_match(code, subject, size, from, options, data, nullptr);
    // The JIT's own stack (32 KiB) can be too small where the interpreter's heap is not.
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code, subject, size, from, options | PCRE2_NO_JIT, data, nullptr);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      fail("tokenizer", "the regular expression gave up: {}; got {}", pcre2_message(rc),
           quote(owner_->pattern_));
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data);
    found_begin_ = valid_begin_ + span[0];
    found_end_ = valid_begin_ + span[1];
    HOCKET_CHECK(found_begin_ >= at_ && found_end_ >= found_begin_, "match [{}, {}) from {}",
                 found_begin_, found_end_, at_);
    if (found_end_ > found_begin_ || found_end_ != last_end_) {
      found_ = true;
      last_end_ = found_end_;
      return true;
    }
    from = found_end_ - valid_begin_;
    from += from < size ? utf8_length(text_, found_end_) : 1;
  }
  exhausted_ = true;
  return false;
}

bool Regex::Cursor::next(std::string_view* piece, bool* is_match) {
  *is_match = false;
  size_t end;
  if (found_) {
    end = found_end_;
    *is_match = true;
    found_ = false;
  } else if (at_ == text_.size() && (exhausted_ || !owner_->may_be_empty_ || text_.empty())) {
    return false;
  } else if (at_ == valid_end_ && at_ < text_.size()) {
    // Not UTF-8 here: one piece up to the next well-formed character.
    end = at_;
    while (end < text_.size() && utf8_length(text_, end) == 0) {
      ++end;
    }
    valid_begin_ = end;
    valid_end_ = utf8_valid_until(text_, end);
    exhausted_ = false;
    last_end_ = std::string::npos;
  } else if (exhausted_ || !match()) {
    end = valid_end_;
    if (end == at_) return next(piece, is_match);
  } else if (found_begin_ > at_) {
    end = found_begin_;
  } else {
    end = found_end_;
    *is_match = true;
    found_ = false;
  }
  *piece = text_.substr(at_, end - at_);
  at_ = end;
  return true;
}

}  // namespace hocket::data

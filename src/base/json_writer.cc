// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/utf8.h"

namespace hocket {

namespace {

/// Bytes that one U+FFFD stands for at `text[at]`, where no well-formed character begins: the
/// longest beginning of one, or a byte (Unicode's "maximal subpart", also of Python and Rust).
size_t malformed_length(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t whole = first < 0xC2 || first > 0xF4 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  size_t length = 1;
  while (length < whole && at + length < text.size()) {
    // A beginning of two bytes or more is one if some tails make a character of it.
    std::string filled(text.substr(at, length + 1));
    filled.resize(whole, '\x80');
    if (utf8_length(filled, 0) == 0) break;
    ++length;
  }
  return length;
}

}  // namespace

void append_json_string(std::string* out, std::string_view text) {
  *out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += text[i++];
    } else if (c == '\n') {
      *out += "\\n";
      ++i;
    } else if (c < 0x20 || c == 0x7F) {
      fmt::format_to(std::back_inserter(*out), "\\u{:04x}", c);
      ++i;
    } else if (c < 0x80) {
      *out += text[i++];
    } else {
      const auto length = static_cast<size_t>(utf8_length(text, i));
      *out += length > 0 ? text.substr(i, length) : std::string_view("\\ufffd");
      i += length > 0 ? length : malformed_length(text, i);
    }
  }
  *out += '"';
}

JsonWriter& JsonWriter::open(char bracket) {
  before_value();
  text_ += bracket;
  open_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::end() {
  HOCKET_CHECK(!open_.empty() && !after_key_, "JSON: nothing to end");
  const char bracket = open_.back();
  open_.pop_back();
  if (!first_) {
    new_line();
  }
  text_ += bracket == '{' ? '}' : ']';
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  HOCKET_CHECK(!open_.empty() && open_.back() == '{' && !after_key_,
               "JSON: a key outside an object");
  if (!first_) {
    text_ += ',';
  }
  new_line();
  append_json_string(&text_, name);
  text_ += style_.indent > 0 ? ": " : ":";
  first_ = false;
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  append_json_string(&text_, text);
  return *this;
}

JsonWriter& JsonWriter::value(double number, int digits) {
  constexpr double kWhole = 1e15;  // below it every whole number is printed as one
  if (!std::isfinite(number)) return null();
  if (number == std::floor(number) && std::fabs(number) < kWhole) {
    return integer(static_cast<int64_t>(number));
  }
  before_value();
  if (digits > 0) {
    fmt::format_to(std::back_inserter(text_), "{:.{}g}", number, digits);
  } else {
    fmt::format_to(std::back_inserter(text_), "{}", number);
  }
  return *this;
}

std::string JsonWriter::take() {
  HOCKET_CHECK(open_.empty(), "JSON: {} brackets are still open", open_.size());
  return std::move(text_);
}

JsonWriter& JsonWriter::integer(int64_t number) {
  before_value();
  fmt::format_to(std::back_inserter(text_), "{}", number);
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view text) {
  before_value();
  text_ += text;
  return *this;
}

// The comma and the line before a value that is no member of an object; those stand before its key.
void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  HOCKET_CHECK(open_.empty() ? first_ : open_.back() == '[', "JSON: a value without a key");
  if (!open_.empty()) {
    if (!first_) {
      text_ += ',';
    }
    new_line();
  }
  first_ = false;
}

void JsonWriter::new_line() {
  if (style_.indent == 0) return;
  text_ += '\n';
  text_.append(static_cast<size_t>(style_.indent) * open_.size(), ' ');
}

}  // namespace hocket

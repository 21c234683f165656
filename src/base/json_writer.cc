// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/utf8.h"

namespace hocket {

namespace {

/// Bytes of a UTF-8 sequence by its first byte, which is 0x80 or more.
size_t sequence_length(unsigned char first) {
  if (first < 0xE0) return 2;
  return first < 0xF0 ? 3 : 4;
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
      const size_t length = sequence_length(c);
      const bool whole = i + length <= text.size() && is_utf8(text.substr(i, length));
      *out += whole ? text.substr(i, length) : std::string_view("\\ufffd");
      i += whole ? length : 1;
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

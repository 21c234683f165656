// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/json_scan.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace hocket::serve {
bool read_json_string(const std::string& json, std::string* out) {
  const nlohmann::json value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return false;
  *out = value.get<std::string>();
  return true;
}

JsonScan::State JsonScan::put(char c) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      return open_.empty() ? State::done : State::more;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      return State::bad;
    }
    return State::more;
  }
  if (scalar_)
    return is_json_space(c) || c == ',' || c == '}' || c == ']' ? State::done_before : State::more;
  switch (c) {
    case '"':
      in_string_ = true;
      return State::more;
    case '{':
    case '[':
      open_ += c;
      return State::more;
    case '}':
    case ']':
      if (open_.empty() || open_.back() != (c == '}' ? '{' : '[')) return State::bad;
      open_.pop_back();
      return open_.empty() ? State::done : State::more;
    default:
      if (!open_.empty()) return State::more;
      scalar_ = c == '-' || c == 't' || c == 'f' || c == 'n' || (c >= '0' && c <= '9');
      return scalar_ ? State::more : State::bad;
  }
}

std::string CallScan::take_arguments() { return std::exchange(arguments_, ""); }

CallScan::State CallScan::begin_value(char c) {
  text_.clear();
  scan_ = JsonScan();
  expecting_ = Expecting::in_value;
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  if (is_arguments && has_arguments_) return State::bad;  // both, or one of them twice
  // Arguments in a string, and null, are read as a whole.
  passes_ = is_arguments && c != '"' && c != 'n';
  has_arguments_ = has_arguments_ || is_arguments;
  return put(c);
}

CallScan::State CallScan::end_value() {
  expecting_ = Expecting::comma;
  if (key_ == "name") {
    if (has_name_ || !read_json_string(text_, &name_) || name_.empty()) return State::bad;
    has_name_ = true;
  } else if (!passes_ && (key_ == "arguments" || key_ == "parameters")) {
    if (text_ == "null") {
      arguments_ = "{}";
    } else if (!read_json_string(text_, &arguments_)) {
      return State::bad;
    }
  }
  passes_ = false;
  return State::more;
}

CallScan::State CallScan::after_value(char c) {
  if (c == ',') {
    expecting_ = Expecting::key;
    text_.clear();
    return State::more;
  }
  return c == '}' ? State::done : State::bad;
}

CallScan::State CallScan::put(char c) {
  // Every place skips white space, but values and strings.
  if (expecting_ == Expecting::in_value) {
    const JsonScan::State state = scan_.put(c);
    if (state == JsonScan::State::bad) return State::bad;
    if (state == JsonScan::State::done_before) {
      return end_value() == State::bad ? State::bad : put(c);
    }
    (passes_ ? arguments_ : text_) += c;
    return state == JsonScan::State::done ? end_value() : State::more;
  }
  if (expecting_ == Expecting::key && !text_.empty()) {
    const JsonScan::State state = scan_.put(c);
    text_ += c;
    if (state == JsonScan::State::bad) return State::bad;
    if (state == JsonScan::State::done) {
      expecting_ = Expecting::colon;
      if (!read_json_string(text_, &key_)) return State::bad;
    }
    return State::more;
  }
  if (is_json_space(c)) return State::more;
  switch (expecting_) {
    case Expecting::open:
      expecting_ = Expecting::key;
      return c == '{' ? State::more : State::bad;
    case Expecting::key:
      if (c == '}' && std::exchange(first_, false)) return State::done;
      first_ = false;
      if (c != '"') return State::bad;
      scan_ = JsonScan();
      scan_.put(c);
      text_ = c;
      return State::more;
    case Expecting::colon:
      expecting_ = Expecting::value;
      return c == ':' ? State::more : State::bad;
    case Expecting::value:
      return begin_value(c);
    default:
      return after_value(c);
  }
}

}  // namespace hocket::serve

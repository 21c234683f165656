// SPDX-License-Identifier: Apache-2.0
// JSON read byte by byte, for text that is still being written: the end of a value, and the members
// of an object that is a call.
#pragma once

#include <string>

namespace hocket::serve {

/// Returns whether a character is JSON's white space.
inline bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Finds the end of one JSON value. Brackets and strings are checked; what stands between them is
/// not.
class JsonScan {
 public:
  enum class State {
    more,
    done,         ///< the byte was the value's last
    done_before,  ///< the value ended before the byte
    bad,
  };
  /// Takes the next byte, without white space before the value. Requires: the last result was more.
  State put(char c);

 private:
  std::string open_;  ///< the brackets that are open
  bool in_string_ = false, escaped_ = false, scalar_ = false;
};

/// Reads {"name": "...", "arguments": ...} (or "parameters"), keys in any order.
class CallScan {
 public:
  enum class State { more, done, bad };
  /// Takes the next byte, the first of which is the opening bracket.
  State put(char c);
  /// Returns whether the name is known and the arguments have begun.
  bool known() const { return has_name_ && has_arguments_; }
  bool has_name() const { return has_name_; }
  const std::string& name() const { return name_; }
  /// Returns the bytes of the arguments that came since the last time.
  std::string take_arguments();

 private:
  enum class Expecting { open, key, colon, value, in_value, comma };
  State begin_value(char c);
  State end_value();
  State after_value(char c);

  Expecting expecting_ = Expecting::open;
  JsonScan scan_;
  std::string text_;  ///< of the key or the value
  std::string key_, name_, arguments_;
  bool has_name_ = false, has_arguments_ = false, first_ = true;
  bool passes_ = false;  ///< the value is that of the arguments, and passed on as it comes
};

/// The text that a JSON string stands for; false if `json` is none.
bool read_json_string(const std::string& json, std::string* out);

}  // namespace hocket::serve

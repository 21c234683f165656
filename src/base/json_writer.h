// SPDX-License-Identifier: Apache-2.0
// Writes JSON: commas, escaping and layout in one place. Keys stand in the order in which they are
// written.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/id.h"

namespace hocket {

/// Appends `text` as a JSON string with its quotes. Invalid UTF-8 becomes U+FFFD.
void append_json_string(std::string* out, std::string_view text);

/// A growing JSON text:
///   JsonWriter w;
///   w.object().member("tasks", 3).key("sizes").array().value(1).value(2).end().end();
///   w.take()  // {"tasks":3,"sizes":[1,2]}
class JsonWriter {
 public:
  struct Style {
    int indent = 0;  ///< above 0: a member or element a line, that many blanks deeper per level
    /// Significant digits of a double, 0 for the shortest text that reads back to the same number.
    int digits = 0;
  };
  JsonWriter() = default;
  explicit JsonWriter(Style style) : style_(style) {}

  JsonWriter& object() { return open('{'); }
  JsonWriter& array() { return open('['); }
  JsonWriter& end();  ///< of the innermost object or array
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  template <std::integral T>
  JsonWriter& value(T number) {
    if constexpr (std::same_as<T, bool>) {
      return raw(number ? "true" : "false");
    } else {
      return integer(static_cast<int64_t>(number));
    }
  }
  template <class Of>
  JsonWriter& value(Id<Of> id) {
    return integer(id.value());
  }
  JsonWriter& value(double number) { return value(number, style_.digits); }
  JsonWriter& value(double number, int digits);  ///< null if not finite
  JsonWriter& null() { return raw("null"); }
  template <typename T>
  JsonWriter& value(const std::vector<T>& list) {
    array();
    for (const T& x : list) {
      value(x);
    }
    return end();
  }
  template <typename T>
  JsonWriter& member(std::string_view name, const T& x) {
    return key(name).value(x);
  }

  /// The text; every object and array must have ended.
  std::string take();

 private:
  JsonWriter& open(char bracket);
  JsonWriter& integer(int64_t number);
  JsonWriter& raw(std::string_view text);
  void before_value();
  void new_line();

  const Style style_;
  std::string text_;
  std::string open_;   ///< the brackets that are open, outermost first
  bool first_ = true;  ///< nothing stands in the innermost one yet
  bool after_key_ = false;
};

}  // namespace hocket

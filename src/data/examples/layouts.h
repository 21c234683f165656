// SPDX-License-Identifier: Apache-2.0
// One object to one example, where its columns are known.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/examples/example.h"
#include "data/examples/messages.h"

namespace hocket::data {

/// An object by the standard names of its columns.
class Row {
 public:
  using Json = nlohmann::ordered_json;
  Row(const Json& object, const std::map<std::string, std::string>& names)
      : object_(object), names_(names) {}

  /// Returns null where the column is not used, absent or null.
  const Json* find(const char* column) const;
  /// Returns the value of a column. Throws Error if it is absent or null.
  const Json& at(const char* column) const;
  const std::string& text(const char* column) const;  ///< Error: no string
  /// Returns the column's text, empty if there is none. Throws Error if it is no string.
  std::string text_or_empty(const char* column) const;
  bool truth(const char* column) const;  ///< Error: not true or false
  /// Returns the name for errors: "question (prompt)".
  std::string shown(const char* column) const;

 private:
  const Json& object_;
  const std::map<std::string, std::string>& names_;
};

/// Fills an example, all but its place. This and the next functions throw Error, whose text is the
/// reason, for a row that is no example of the layout.
void read_text(const Row& row, Example* example);
void read_chat(const Row& row, const MessageTags& tags, bool in_turns, Example* example);
void read_completion(const Row& row, const MessageTags& tags, Example* example);
void read_unpaired(const Row& row, const MessageTags& tags, Example* example);
void read_preference(const Row& row, const MessageTags& tags, Example* example);
void read_alpaca(const Row& row, Example* example);

}  // namespace hocket::data

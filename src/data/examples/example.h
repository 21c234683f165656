// SPDX-License-Identifier: Apache-2.0
// One example of a fine-tuning set, as a line of its file has it, before a template and a tokenizer
// make tokens of it (docs/data-formats.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace hocket::data {

struct Example {
  /// Fields in use: text; messages; prompt and completion; prompt, chosen and rejected; prompt,
  /// completion and label.
  enum class Kind : uint8_t { text, chat, completion, preference, unpaired };
  /// A string, or a list of messages: objects with a role, as chat templates read them.
  using Turns = nlohmann::ordered_json;

  Kind kind = Kind::text;
  std::string text;
  Turns messages, prompt, completion, chosen, rejected;
  bool label = false;            ///< unpaired: the completion is desirable
  nlohmann::ordered_json tools;  ///< list of JSON schemas; null: none
  /// More variables of the template, an object; null: none.
  nlohmann::ordered_json template_variables;

  std::string file;
  int64_t line = 0;  ///< from 1; of a JSON array or a table the number of the entry
};

/// "text", "chat", "completion", "preference", "unpaired".
const char* to_string(Example::Kind kind);

}  // namespace hocket::data

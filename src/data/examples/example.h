// SPDX-License-Identifier: Apache-2.0
// One example of a fine-tuning set, as a line of its file has it, before a template and a tokenizer
// make tokens of it (docs/data-formats.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hocket::data {

struct Example {
  /// Fields in use: text; messages; prompt and completion; prompt, chosen and rejected; prompt,
  /// completion and label; ids.
  enum class Kind : uint8_t { text, chat, completion, preference, unpaired, tokens };
  /// A string, or a list of messages: objects with a role, as chat templates read them.
  using Turns = nlohmann::ordered_json;

  Kind kind = Kind::text;
  std::string text;
  /// prompt and completion, or prompt, chosen and rejected, are all strings or all messages.
  Turns messages, prompt, completion, chosen, rejected;
  std::vector<int32_t> ids;      ///< of a document that is tokenized already, from 0
  bool label = false;            ///< unpaired: the completion is desirable
  nlohmann::ordered_json tools;  ///< list of JSON schemas; null: none
  /// More variables of the template, an object; null: none.
  nlohmann::ordered_json template_variables;

  std::string file;
  int64_t line = 0;   ///< where it begins, from 1; of a table its row, of token files the document
  int64_t entry = 0;  ///< of a JSON array its number, from 1; else 0
  /// Returns "chat.jsonl:17", or "chat.json:17 (entry 3)" in an array.
  std::string place() const;
};

/// "text", "chat", "completion", "preference", "unpaired", "tokens".
const char* to_string(Example::Kind kind);

}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// Keywords of JSON Schema, and their treatment: the list that docs/structured-output.md shows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hocket::serve::grammar {

enum class KeywordUse : uint8_t {
  enforced,  ///< every text satisfies it
  partly,    ///< enforced in the cases that the note names; else refused
  ignored,   ///< restricts nothing
  refused,
};

struct Keyword {
  std::string_view name;
  KeywordUse use;
  std::string_view note;
};

std::span<const Keyword> schema_keywords();
/// Returns a keyword by its name; null: no standard has it, so it is refused.
const Keyword* find_keyword(std::string_view name);
/// Rows of the table of the docs, in Markdown.
std::string keyword_table();
std::string format_table();

}  // namespace hocket::serve::grammar

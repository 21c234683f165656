// SPDX-License-Identifier: Apache-2.0
// Properties of characters and Unicode's normalisation forms (Standard Annex 15), from utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::data {

/// Start of the well-formed character that ends at `end`; `end` if there is none.
size_t utf8_before(std::string_view text, size_t end);

/// Returns whether a character is Unicode's White_Space.
bool is_white_space(uint32_t code_point);
/// Returns whether a character is of Rust's \w: letters, marks, decimal digits, connectors and what
/// else is alphabetic.
bool is_word_char(uint32_t code_point);
/// Returns whether a character is a combining one (category M).
bool is_mark(uint32_t code_point);
/// Appends the lower case of a character.
void append_lower(uint32_t code_point, std::string* out);

/// One of the four forms: canonical or compatibility decomposition, composed again or not.
class NormalForm {
 public:
  NormalForm(bool compatibility, bool composed);

  /// Start and end of the next stretch, from `at` on, that may not be in this form, with the
  /// character before it; what lies outside is unchanged. False if there is none.
  bool next(std::string_view text, size_t at, size_t* begin, size_t* end) const;
  /// Appends the form of a stretch. Requires: well-formed UTF-8.
  void append(std::string_view stretch, std::string* out) const;

 private:
  bool inert(uint32_t code_point) const;

  int options_ = 0;
  bool composed_;
  std::vector<bool> inert_;  // by code point: unchanged whatever stands around it
};

}  // namespace hocket::data

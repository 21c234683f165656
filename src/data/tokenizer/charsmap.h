// SPDX-License-Identifier: Apache-2.0
// Table of replacements that sentencepiece compiles ("precompiled_charsmap"): a double-array trie
// (Aoe, "An efficient digital search algorithm by using a double-array structure", 1989) from texts
// to places in a list of texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::data {

struct Piece;
class Rewritten;

class Charsmap {
 public:
  /// Throws Error if the table is cut short.
  explicit Charsmap(std::string_view table);

  /// Replaces grapheme clusters, or their characters, that the table has; false if there is none.
  bool apply(const Piece& in, Rewritten* out) const;

 private:
  bool find(std::string_view text, std::string_view* replacement) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace hocket::data

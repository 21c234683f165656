// SPDX-License-Identifier: Apache-2.0
// Bytes of characters inside a JSON string: UTF-8 or escapes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "serve/grammar/char_dfa.h"

namespace hocket::serve::grammar {

struct ByteSpan {
  uint8_t first = 0, last = 0;  ///< both included
  auto operator<=>(const ByteSpan&) const = default;
};
/// A sequence of bytes, each in its range.
using BytePath = std::vector<ByteSpan>;

/// Automaton of byte sequences none of which begins another: a sequence ends where it is complete.
struct ByteDfa {
  static constexpr int16_t kDead = -1, kDone = -2;
  std::vector<std::array<int16_t, 256>> next;  ///< by state and byte; starts in state 0
};

ByteDfa byte_dfa(const std::vector<BytePath>& paths);

/// Sequences of the characters of the set, one writing of each kind: as they are, or the short
/// escape, or \u00XX where JSON demands one; characters beyond ASCII also as \uXXXX, which
/// encoders for ASCII write.
std::vector<BytePath> char_paths(const CodeSet& set);
/// Sequences of any one character, with all escapes of JSON; halves of surrogate pairs are none.
std::vector<BytePath> any_char_paths();

}  // namespace hocket::serve::grammar

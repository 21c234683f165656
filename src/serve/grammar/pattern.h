// SPDX-License-Identifier: Apache-2.0
// Regular expressions of JSON Schema (ECMA-262 with the flag u), those that a finite automaton can
// hold: no look-around, back references or word boundaries.
#pragma once

#include <string>
#include <string_view>

#include "serve/grammar/char_dfa.h"

namespace hocket::serve::grammar {

/// Automaton of all texts in which the pattern matches anywhere, as JSON Schema reads it: ^ and $
/// stand for the ends of the text. Throws Error with `where` for bad syntax, for what no automaton
/// can hold, by name, and for a pattern that needs too many states.
CharDfa pattern_dfa(std::string_view pattern, const std::string& where);

}  // namespace hocket::serve::grammar

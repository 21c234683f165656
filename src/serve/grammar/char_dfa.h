// SPDX-License-Identifier: Apache-2.0
// Finite automata over the characters of a text: patterns, formats, numbers, names of properties.
// Surrogates are no characters: no automaton accepts one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::serve::grammar {

/// Code points first to last, both included.
struct CodeRange {
  uint32_t first = 0, last = 0;
  bool operator==(const CodeRange&) const = default;
  auto operator<=>(const CodeRange&) const = default;
};
/// Sorted ranges that neither overlap nor touch, without surrogates.
using CodeSet = std::vector<CodeRange>;

/// Sorts and merges ranges, and removes surrogates.
CodeSet code_set(std::vector<CodeRange> ranges);
/// Returns all characters but those of the set.
CodeSet code_complement(const CodeSet& set);

/// A deterministic automaton without states from which nothing is accepted. Starts in state 0.
struct CharDfa {
  std::vector<uint32_t> begins;  ///< first code point of each class of characters, rising from 0
  std::vector<int32_t> next;     ///< [state * classes + class]; -1: nothing is accepted from there
  std::vector<uint8_t> accepts;  ///< by state

  int32_t classes() const { return static_cast<int32_t>(begins.size()); }
  int32_t states() const { return static_cast<int32_t>(accepts.size()); }
  bool empty() const { return accepts.empty(); }  ///< accepts no text
  int32_t step(int32_t state, uint32_t code_point) const;
  /// Returns whether the automaton accepts a text; false if that is not UTF-8.
  bool matches(std::string_view text) const;
  /// Characters that lead from one state to another.
  CodeSet between(int32_t from, int32_t to) const;
};

constexpr int32_t kMaxDfaStates = 20'000;
constexpr size_t kMaxDfaEdges = 8'000'000;  ///< states times classes: 32 MB

// Functions below that return an optional return nothing above kMaxDfaStates or kMaxDfaEdges.

/// Accepts exactly these UTF-8 texts.
std::optional<CharDfa> dfa_of_texts(const std::vector<std::string>& texts);
/// Accepts texts of `least` to `most` characters (-1: any number).
std::optional<CharDfa> dfa_of_lengths(int64_t least, int64_t most);
/// Accepts the decimal digits, with a sign or without, of multiples of `divisor`.
CharDfa dfa_of_multiples(int32_t divisor);

enum class DfaOp : uint8_t { both, either, first_only };
/// Accepts texts that both accept, either does, or the first alone.
std::optional<CharDfa> dfa_combine(const CharDfa& a, const CharDfa& b, DfaOp op);

/// A nondeterministic automaton under construction.
class CharNfa {
 public:
  int32_t add_state();
  int32_t states() const { return static_cast<int32_t>(states_.size()); }
  void add_edge(int32_t from, CodeSet set, int32_t to);
  enum class When : uint8_t { always, at_begin, at_end };
  /// An edge that reads nothing, and may be taken only at that place of the text.
  void add_empty(int32_t from, int32_t to, When when = When::always);
  /// Returns an equal deterministic automaton. Returns nothing also if it takes too much work.
  std::optional<CharDfa> determinise(int32_t start, int32_t final) const;

 private:
  struct Edge {
    CodeSet set;
    int32_t to;
  };
  struct Empty {
    int32_t to;
    When when;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<Empty> empties;
  };
  friend class Determiniser;
  std::vector<State> states_;
};

}  // namespace hocket::serve::grammar

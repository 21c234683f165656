// SPDX-License-Identifier: Apache-2.0
// A context-free grammar over bytes, as expressions. Rules make it recursive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serve/grammar/char_dfa.h"
#include "serve/grammar/encoding.h"

namespace hocket::serve::grammar {

using ExprId = uint32_t;
using RuleId = uint32_t;

struct Expr {
  enum class Kind : uint8_t {
    text,      ///< exactly texts[a]
    bytes,     ///< one sequence of byte_dfas[a]
    machine,   ///< machines[a]
    sequence,  ///< lists[a], one after the other
    choice,    ///< one of lists[a]
    repeat,    ///< expression a, `least` to `most` times (most -1: any number)
    call,      ///< rule a
  };
  Kind kind = Kind::text;
  bool productive = false;  ///< some text matches it; set by Grammar::finish()
  uint32_t a = 0;
  int32_t least = 0, most = 0;
};

/// An automaton whose edges read expressions of kind `bytes`; starts in state 0.
struct Machine {
  struct Edge {
    ExprId chars;
    int32_t to;
    auto operator<=>(const Edge&) const = default;
  };
  struct State {
    bool accepts = false;
    std::vector<Edge> edges = {};
    bool operator==(const State&) const = default;
  };
  std::vector<State> states;
};

/// Expressions are made bottom up; equal ones are one. Immutable after finish(), and then safe to
/// share between threads.
class Grammar {
 public:
  Grammar() = default;

  ExprId text(std::string_view bytes);
  /// Strings of one byte, any of these.
  ExprId one_of(std::string_view bytes);
  /// One character inside a JSON string, of the set, as char_paths writes it.
  ExprId chars(const CodeSet& set);
  ExprId any_char();
  /// Texts that the automaton accepts, written as inside a JSON string.
  ExprId dfa(const CharDfa& dfa);
  /// The same for these UTF-8 texts alone; any number of them.
  ExprId texts(std::vector<std::string> texts);
  ExprId sequence(std::vector<ExprId> parts);
  ExprId choice(std::vector<ExprId> parts);
  ExprId nothing() { return choice({}); }  ///< matches no text
  ExprId optional(ExprId part) { return repeat(part, 0, 1); }
  /// Requires: `part` matches no empty text.
  ExprId repeat(ExprId part, int64_t least, int64_t most);
  /// A rule without a body yet: set_rule() gives it one.
  RuleId add_rule();
  void set_rule(RuleId rule, ExprId body);
  ExprId call(RuleId rule);

  /// Marks the productive expressions.
  void finish(ExprId root);
  ExprId root() const { return root_; }

  const Expr& expr(ExprId id) const { return exprs_[id]; }
  size_t size() const { return exprs_.size(); }
  size_t memory_bytes() const;  ///< requires: finished
  const std::string& text_of(const Expr& e) const { return texts_[e.a]; }
  const ByteDfa& bytes_of(const Expr& e) const { return byte_dfas_[e.a]; }
  const Machine& machine_of(const Expr& e) const { return machines_[e.a]; }
  const std::vector<ExprId>& list_of(const Expr& e) const { return lists_[e.a]; }
  ExprId body_of(const Expr& e) const { return rules_[e.a]; }

 private:
  ExprId intern(Expr expr, std::string key);
  ExprId add_machine(Machine machine);
  ExprId add_bytes(ByteDfa dfa, std::string key);

  std::vector<Expr> exprs_;
  std::vector<std::string> texts_;
  std::vector<ByteDfa> byte_dfas_;
  std::vector<Machine> machines_;
  std::vector<std::vector<ExprId>> lists_;
  std::vector<ExprId> rules_;
  std::unordered_map<std::string, ExprId> ids_;
  ExprId root_ = 0;
};

}  // namespace hocket::serve::grammar

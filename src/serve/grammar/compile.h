// SPDX-License-Identifier: Apache-2.0
// From subschemas to expressions of a grammar. Properties are written in the order of the schema;
// white space only behind { [ , : and before } ], and little of it (docs/structured-output.md).
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/grammar/grammar.h"
#include "serve/grammar/schema.h"

namespace hocket::serve::grammar {

/// Objects and lists inside one another where the schema allows any value.
constexpr int kMaxAnyDepth = 64;

/// The parts of JSON that need no schema.
class JsonParts {
 public:
  explicit JsonParts(Grammar* grammar);

  ExprId space() const { return space_; }
  ExprId separator() const { return separator_; }  ///< a comma, and space
  /// A JSON string of this content.
  ExprId quoted(ExprId content);
  ExprId any_string();
  ExprId any_number() { return number_; }
  ExprId any_integer() { return integer_; }
  ExprId any_value() { return any(kMaxAnyDepth); }
  ExprId any_object() { return any_object_of(kMaxAnyDepth - 1); }
  /// A key, its colon and space.
  ExprId key(const std::string& name);
  /// The value itself, in any spacing.
  ExprId constant(const Schema& value);

 private:
  ExprId any(int depth);
  ExprId any_object_of(int depth);
  ExprId listed(const char* open, const std::vector<ExprId>& parts, const char* close);

  Grammar& g_;
  ExprId space_, separator_, number_, integer_;
  std::vector<ExprId> any_;  // by depth
};

/// Compiles the goals of one reader. Throws Error as the reader does, and for what has no texts.
class SchemaCompiler {
 public:
  SchemaCompiler(Grammar* grammar, JsonParts* parts, SchemaReader* reader)
      : g_(*grammar), parts_(*parts), reader_(*reader) {}

  /// Compiles a goal and all that it leads to.
  ExprId compile(const Goal& goal);

 private:
  /// A member of an object, its value behind its key.
  struct Member {
    ExprId expr;
    bool required;
  };

  ExprId value(const Goal& goal);
  ExprId body(const Goal& goal);
  ExprId flat(const Flat& flat);
  ExprId values(const Flat& flat);
  ExprId number(const Flat& flat);
  /// Strings of any of these: those of one kind are one expression, not a choice of many.
  ExprId strings(const std::vector<const Flat*>& texts);
  ExprId array(const Flat& flat);
  ExprId object(const Flat& flat);
  std::vector<Member> members(const Flat& flat, std::vector<std::string>* names);
  /// Members that are not declared; none: there are none.
  std::optional<ExprId> others(const Flat& flat, const std::vector<std::string>& names);
  ExprId members_in_order(const Flat& flat, const std::vector<Member>& members,
                          std::optional<ExprId> others);
  /// The members behind the declared ones, from the first on, and the end of the object.
  ExprId other_members(const Flat& flat, std::optional<ExprId> others, int64_t written);
  [[noreturn]] static void refuse_counts(const Flat& flat);

  Grammar& g_;
  JsonParts& parts_;
  SchemaReader& reader_;
  std::map<Goal, RuleId> rules_;
  std::deque<std::pair<Goal, RuleId>> open_;
};

}  // namespace hocket::serve::grammar

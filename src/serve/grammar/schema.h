// SPDX-License-Identifier: Apache-2.0
// A JSON Schema, read: each subschema, together with others that must hold of the same value, as a
// list of alternatives without anyOf, oneOf, allOf and $ref.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serve/grammar/char_dfa.h"
#include "serve/grammar/number_range.h"

namespace hocket::serve::grammar {

using Schema = nlohmann::ordered_json;
using NodeId = int32_t;
/// Subschemas that must all hold of one value, sorted; empty: any value.
using Goal = std::vector<NodeId>;

enum JsonType : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kObject = 4,
  kArray = 8,
  kString = 16,
  kInteger = 32,
  kReal = 64,  ///< numbers that are no integers
  kAnyType = 127,
};

struct Property {
  std::string name;
  Goal goal;
};
struct PatternProperty {
  std::string pattern, where;
  Goal goal;
};
/// A choice among the branches of oneOf: the others must not hold.
struct OneOf {
  std::vector<NodeId> branches;
  size_t taken = 0;
};

/// A conjunction of keywords. The types' keywords restrict values of the type alone.
struct Flat {
  std::string where;  ///< of the subschema, for errors
  uint8_t types = kAnyType;
  bool typed = false;                         ///< `type` was given
  uint8_t hints = 0;                          ///< types whose keywords were given
  std::optional<std::vector<Schema>> values;  ///< enum and const
  NumberLimits numbers;
  int64_t min_length = 0, max_length = -1;                    ///< -1: none
  std::vector<std::pair<std::string, std::string>> patterns;  ///< with where each stands
  std::vector<std::string> formats;                           ///< those that are enforced
  std::vector<Goal> prefix;
  std::optional<Goal> items;  ///< behind the prefix; none: not given
  int64_t min_items = 0, max_items = -1;
  bool declares = false;  ///< `properties` was given
  std::vector<Property> properties;
  std::vector<PatternProperty> pattern_properties;
  std::optional<Goal> additional;  ///< none: not given
  std::vector<std::string> required;
  Goal names;  ///< propertyNames
  int64_t min_properties = 0, max_properties = -1;
  std::vector<OneOf> choices;

  const Property* find(const std::string& name) const;
  bool requires_name(const std::string& name) const;
  /// The types that are written: without `type`, those that the keywords are about.
  uint8_t written_types() const;
  /// Returns whether only declared properties are written.
  bool written_closed() const;
  /// The goal of an element that is written; none: no element stands there.
  std::optional<Goal> written_item(size_t index) const;
};

/// Not thread-safe. Every function throws Error for what it meets in the schema and cannot read,
/// with the JSON pointer.
class SchemaReader {
 public:
  /// Copies the schema.
  explicit SchemaReader(Schema root);
  SchemaReader(const SchemaReader&) = delete;
  SchemaReader& operator=(const SchemaReader&) = delete;

  Goal root() { return goal_of(root_, "#"); }
  /// The goal of a schema that is no part of the root; it must outlive the reader.
  Goal goal_of(const Schema& schema, const std::string& pointer);
  /// Returns the alternatives of a goal; none: no value is valid.
  const std::vector<Flat>& alternatives(const Goal& goal);
  std::string where(const Goal& goal) const;

  /// Begins the work on another value, which is limited.
  void begin_value() { work_ = 0; }
  /// Returns whether the value is valid.
  bool matches(const Goal& goal, const Schema& value);
  bool matches(const Flat& flat, const Schema& value);
  /// Returns whether a string, if the value is one, is a text of the formats that are enforced.
  bool has_formats(const Flat& flat, const Schema& value);
  /// Throws Error where another branch of oneOf may hold of a text that is written for this one.
  void require_one(const Flat& flat);

  /// Goal of a property: declared, or by patterns, or additional. None: additionalProperties is
  /// absent.
  std::optional<Goal> property_goal(const Flat& flat, const std::string& name);
  /// Texts that the patterns, formats and, beside these or if `lengths`, the lengths accept; none:
  /// any text.
  std::optional<CharDfa> string_dfa(const Flat& flat, bool lengths);
  /// Texts that some string of the goal is; none: any text.
  std::optional<CharDfa> strings_of(const Goal& goal);
  const CharDfa& pattern(const std::string& pattern, const std::string& where);

  const std::vector<std::string>& warnings() const { return warnings_; }

  static Goal both(const Goal& a, const Goal& b);

 private:
  struct Node {
    const Schema* json;
    std::string pointer;
  };
  struct Branches {
    std::vector<NodeId> nodes;
    bool one = false;
  };
  struct Work {
    Flat flat;
    std::vector<NodeId> pending;
    std::set<NodeId> seen;
    std::vector<Branches> branches;
  };

  NodeId node_of(const Schema& json, const std::string& pointer);
  const Schema& resolve(const std::string& ref, const std::string& where,
                        std::string* pointer) const;
  std::vector<NodeId> members(const Schema& list, const std::string& pointer);
  void require_progress(NodeId node, int depth);
  std::vector<NodeId> same_level(NodeId node);
  std::string where_of(const std::string& pointer) const { return "json schema " + pointer; }

  /// Adds a subschema to the conjunction. False: nothing holds.
  bool read(NodeId node, Work* work);
  void require_known(const Node& node) const;
  void read_types(const Node& node, Flat* flat);
  void read_values(const Node& node, Flat* flat);
  void read_numbers(const Node& node, Flat* flat);
  void read_strings(const Node& node, Flat* flat);
  void read_array(const Node& node, Flat* flat);
  void read_object(const Node& node, Flat* flat);
  void read_properties(const Node& node, Flat* flat);
  void read_counts(const Node& node, const char* least_key, const char* most_key, uint8_t type,
                   int64_t* least, int64_t* most, Flat* flat);
  void warn(std::string text);

  bool matches_array(const Flat& flat, const Schema& value);
  bool matches_object(const Flat& flat, const Schema& value);
  bool matches_string(const Flat& flat, const std::string& value);
  bool disjoint(const Flat& written, const Flat& valid, int depth);
  bool disjoint_strings(const Flat& a, const Flat& b);
  bool disjoint_arrays(const Flat& written, const Flat& valid, int depth);
  bool disjoint_objects(const Flat& written, const Flat& valid, int depth);
  bool disjoint(const Goal& written, const Goal& valid, int depth);
  void spend(int64_t work, const std::string& where);

  Schema root_;
  std::vector<Node> nodes_;
  std::unordered_map<const Schema*, NodeId> node_ids_;
  std::map<Goal, std::vector<Flat>> alternatives_;
  std::unordered_map<NodeId, bool> progress_;  // checked; false: under way
  std::map<std::string, CharDfa> patterns_;
  std::vector<std::string> warnings_;
  int64_t work_ = 0;
};

/// Text that is equal for equal JSON values: 1 and 1.0, objects in any order.
std::string canonical_json(const Schema& value);

}  // namespace hocket::serve::grammar

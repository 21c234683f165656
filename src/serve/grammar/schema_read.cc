// SPDX-License-Identifier: Apache-2.0
// Implements: SchemaReader's reading of keywords (schema.h).
#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "serve/grammar/formats.h"
#include "serve/grammar/keywords.h"
#include "serve/grammar/schema.h"

namespace hocket::serve::grammar {
namespace {

constexpr int64_t kMaxCountValue = 1'000'000'000;

std::string shown(const Schema& value) {
  return quote(value.dump(-1, ' ', false, Schema::error_handler_t::replace));
}

/// Returns a key's value, or null without it.
const Schema* value_at(const Schema& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

uint8_t type_bit(const Schema& name, const std::string& where) {
  static const std::map<std::string, uint8_t, std::less<>> kTypes = {
      {"null", kNull},     {"boolean", kBoolean}, {"object", kObject},         {"array", kArray},
      {"string", kString}, {"integer", kInteger}, {"number", kInteger | kReal}};
  const auto it = name.is_string() ? kTypes.find(name.get_ref<const std::string&>()) : kTypes.end();
  if (it == kTypes.end()) {
    fail(where,
         "unknown type; got {}; expected null, boolean, object, array, string, number or "
         "integer",
         shown(name));
  }
  return it->second;
}

int64_t count_of(const Schema& value, const std::string& where) {
  if (value.is_number()) {
    const double number = value.get<double>();
    if (number >= 0 && number <= static_cast<double>(kMaxCountValue) &&
        number == static_cast<double>(static_cast<int64_t>(number))) {
      return static_cast<int64_t>(number);
    }
  }
  fail(where, "bad count; got {}; expected an integer from 0 to {}", shown(value), kMaxCountValue);
}

/// Returns a key of a JSON pointer.
std::string pointer_key(std::string_view key) {
  std::string out;
  for (char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

bool SchemaReader::read(NodeId id, Work* work) {
  const Node node = nodes_[static_cast<size_t>(id)];
  const std::string where = where_of(node.pointer);
  if (node.json->is_boolean()) return node.json->get<bool>();
  if (!node.json->is_object()) {
    fail(where, "no schema; got {}; expected an object, true or false", shown(*node.json));
  }
  require_known(node);
  Flat* flat = &work->flat;
  if (flat->where.empty()) {
    flat->where = where;
  }
  read_types(node, flat);
  read_values(node, flat);
  read_numbers(node, flat);
  read_strings(node, flat);
  read_array(node, flat);
  read_object(node, flat);
  if (const Schema* ref = value_at(*node.json, "$ref")) {
    if (!ref->is_string()) fail(where, "$ref is no text; got {}", shown(*ref));
    std::string pointer;
    const Schema& target = resolve(ref->get_ref<const std::string&>(), where, &pointer);
    work->pending.push_back(node_of(target, pointer));
  }
  if (const Schema* all = value_at(*node.json, "allOf")) {
    for (NodeId member : members(*all, node.pointer + "/allOf")) {
      work->pending.push_back(member);
    }
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    if (const Schema* list = value_at(*node.json, key)) {
      work->branches.push_back(
          {members(*list, node.pointer + "/" + key), std::string_view(key) == "oneOf"});
    }
  }
  return flat->types != 0 && !(flat->values && flat->values->empty());
}

void SchemaReader::require_known(const Node& node) const {
  for (const auto& [key, value] : node.json->items()) {
    if (std::string_view(key).starts_with("x-")) continue;
    const Keyword* keyword = find_keyword(key);
    const std::string where = where_of(node.pointer + "/" + pointer_key(key));
    if (keyword == nullptr) {
      fail(where,
           "unknown keyword; got {}; expected one of docs/structured-output.md; try without "
           "it",
           quote(key));
    }
    if (keyword->use == KeywordUse::refused) {
      fail(where, "keyword {} is not supported{}{}; try without it", quote(key),
           keyword->note.empty() ? "" : ": ", keyword->note);
    }
  }
}

void SchemaReader::read_types(const Node& node, Flat* flat) {
  const Schema* type = value_at(*node.json, "type");
  if (type == nullptr) return;
  const std::string where = where_of(node.pointer + "/type");
  uint8_t types = 0;
  if (type->is_array()) {
    for (const Schema& each : *type) {
      types |= type_bit(each, where);
    }
  } else {
    types = type_bit(*type, where);
  }
  flat->types &= types;
  flat->typed = true;
}

void SchemaReader::read_values(const Node& node, Flat* flat) {
  const auto keep = [&](const std::vector<Schema>& values) {
    std::set<std::string> before;
    for (const Schema& value : flat->values ? *flat->values : std::vector<Schema>{}) {
      before.insert(canonical_json(value));
    }
    std::vector<Schema> kept;
    for (const Schema& value : values) {
      if (!flat->values || before.contains(canonical_json(value))) {
        kept.push_back(value);
      }
    }
    spend(static_cast<int64_t>(values.size()), where_of(node.pointer));
    flat->values = std::move(kept);
  };
  if (const Schema* list = value_at(*node.json, "enum")) {
    if (!list->is_array() || list->empty()) {
      fail(where_of(node.pointer + "/enum"),
           "no list of values; got {}; expected a list that is "
           "not empty",
           shown(*list));
    }
    keep(std::vector<Schema>(list->begin(), list->end()));
  }
  if (const Schema* value = value_at(*node.json, "const")) {
    keep({*value});
  }
}

void SchemaReader::read_numbers(const Node& node, Flat* flat) {
  const auto bound = [&](const char* key, bool low, bool exclusive) {
    const Schema* value = value_at(*node.json, key);
    if (value == nullptr) return;
    const std::optional<Decimal> decimal = decimal_of(*value);
    if (!decimal) {
      fail(where_of(node.pointer + "/" + key), "bad bound; got {}; expected a number",
           shown(*value));
    }
    if (low) {
      flat->numbers.raise({*decimal, exclusive});
    } else {
      flat->numbers.lower({*decimal, exclusive});
    }
    flat->hints |= kInteger | kReal;
  };
  bound("minimum", true, false);
  bound("exclusiveMinimum", true, true);
  bound("maximum", false, false);
  bound("exclusiveMaximum", false, true);
  const Schema* divisor = value_at(*node.json, "multipleOf");
  if (divisor == nullptr) return;
  const std::string where = where_of(node.pointer + "/multipleOf");
  const std::optional<Decimal> decimal = decimal_of(*divisor);
  if (!decimal || decimal->negative || decimal->is_zero() || !decimal->is_integer() ||
      decimal->whole.size() > 9) {
    fail(where, "not supported; got {}; expected an integer from 1 to 2000; try without it",
         shown(*divisor));
  }
  const int64_t value = std::stoll(decimal->whole);
  const int64_t before = std::max<int64_t>(flat->numbers.divisor, 1);
  int64_t a = before, b = value;
  while (b != 0) {
    std::swap(a, b);
    b %= a;
  }
  flat->numbers.divisor = before / a * value;
  if (flat->numbers.divisor > kMaxCountValue) fail(where, "multiples of too large a number");
  flat->hints |= kInteger | kReal;
}

void SchemaReader::read_counts(const Node& node, const char* least_key, const char* most_key,
                               uint8_t type, int64_t* least, int64_t* most, Flat* flat) {
  if (const Schema* value = value_at(*node.json, least_key)) {
    *least = std::max(*least, count_of(*value, where_of(node.pointer + "/" + least_key)));
    flat->hints |= type;
  }
  if (const Schema* value = value_at(*node.json, most_key)) {
    const int64_t count = count_of(*value, where_of(node.pointer + "/" + most_key));
    *most = *most < 0 ? count : std::min(*most, count);
    flat->hints |= type;
  }
}

void SchemaReader::read_strings(const Node& node, Flat* flat) {
  read_counts(node, "minLength", "maxLength", kString, &flat->min_length, &flat->max_length, flat);
  if (const Schema* value = value_at(*node.json, "pattern")) {
    const std::string where = where_of(node.pointer + "/pattern");
    if (!value->is_string()) fail(where, "no text; got {}", shown(*value));
    flat->patterns.emplace_back(value->get<std::string>(), where);
    flat->hints |= kString;
  }
  const Schema* format = value_at(*node.json, "format");
  if (format == nullptr) return;
  const std::string where = where_of(node.pointer + "/format");
  if (!format->is_string()) fail(where, "no text; got {}", shown(*format));
  const auto& name = format->get_ref<const std::string&>();
  if (find_format(name) != nullptr) {
    flat->formats.push_back(name);
    flat->hints |= kString;
  } else {
    warn(fmt::format("[{}] format {} is not enforced", where, quote(name)));
  }
}

void SchemaReader::read_array(const Node& node, Flat* flat) {
  read_counts(node, "minItems", "maxItems", kArray, &flat->min_items, &flat->max_items, flat);
  const Schema* items = value_at(*node.json, "items");
  const Schema* prefix = value_at(*node.json, "prefixItems");
  std::string items_at = node.pointer + "/items", prefix_at = node.pointer + "/prefixItems";
  if (items != nullptr && items->is_array()) {  // draft 7
    if (prefix != nullptr)
      fail(where_of(items_at), "is a list beside prefixItems; try one of both");
    prefix = items;
    prefix_at = items_at;
    items = value_at(*node.json, "additionalItems");
    items_at = node.pointer + "/additionalItems";
  } else if (node.json->contains("additionalItems")) {
    fail(where_of(node.pointer + "/additionalItems"),
         "keyword \"additionalItems\" stands without a list of items; try \"items\"");
  }
  if (const Schema* unique = value_at(*node.json, "uniqueItems")) {
    const bool is_set = !unique->is_boolean() || unique->get<bool>();
    if (is_set && (flat->max_items < 0 || flat->max_items > 1)) {
      fail(where_of(node.pointer + "/uniqueItems"),
           "keyword \"uniqueItems\" is supported with maxItems up to 1 alone; got {}; try without "
           "it",
           shown(*unique));
    }
  }
  if (items == nullptr && prefix == nullptr) return;
  flat->hints |= kArray;
  if (prefix != nullptr) {
    const std::vector<NodeId> nodes = members(*prefix, prefix_at);
    const Goal rest = flat->items.value_or(Goal{});
    while (flat->prefix.size() < nodes.size()) {
      flat->prefix.push_back(rest);
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      flat->prefix[i] = both(flat->prefix[i], {nodes[i]});
    }
  }
  if (items != nullptr) {
    const Goal goal = goal_of(*items, items_at);
    for (size_t i = prefix == nullptr ? 0 : prefix->size(); i < flat->prefix.size(); ++i) {
      flat->prefix[i] = both(flat->prefix[i], goal);
    }
    flat->items = both(flat->items.value_or(Goal{}), goal);
  }
}

void SchemaReader::read_object(const Node& node, Flat* flat) {
  read_counts(node, "minProperties", "maxProperties", kObject, &flat->min_properties,
              &flat->max_properties, flat);
  if (const Schema* required = value_at(*node.json, "required")) {
    const std::string where = where_of(node.pointer + "/required");
    if (!required->is_array()) fail(where, "no list; got {}; expected names", shown(*required));
    std::set<std::string> before(flat->required.begin(), flat->required.end());
    for (const Schema& name : *required) {
      if (!name.is_string()) fail(where, "no name; got {}; expected a text", shown(name));
      if (before.insert(name.get<std::string>()).second) {
        flat->required.push_back(name.get<std::string>());
      }
    }
    flat->hints |= kObject;
  }
  if (const Schema* names = value_at(*node.json, "propertyNames")) {
    flat->names = both(flat->names, goal_of(*names, node.pointer + "/propertyNames"));
    flat->hints |= kObject;
  }
  read_properties(node, flat);
}

void SchemaReader::read_properties(const Node& node, Flat* flat) {
  Flat own;  // properties of this subschema alone
  const auto each = [&](const char* key, const auto& take) {
    const Schema* object = value_at(*node.json, key);
    if (object == nullptr) return;
    const std::string pointer = node.pointer + "/" + key;
    if (!object->is_object()) {
      fail(where_of(pointer), "no object; got {}; expected names and schemas", shown(*object));
    }
    flat->hints |= kObject;
    for (const auto& [name, schema] : object->items()) {
      const std::string at = pointer + "/" + pointer_key(name);
      take(name, where_of(at), goal_of(schema, at));
    }
  };
  each("properties", [&](const std::string& name, const std::string&, Goal goal) {
    own.properties.push_back({name, std::move(goal)});
  });
  each("patternProperties", [&](const std::string& name, const std::string& where, Goal goal) {
    own.pattern_properties.push_back({name, where, std::move(goal)});
  });
  flat->declares = flat->declares || node.json->contains("properties");
  if (const Schema* additional = value_at(*node.json, "additionalProperties")) {
    own.additional = goal_of(*additional, node.pointer + "/additionalProperties");
    flat->hints |= kObject;
  }
  const auto restricts = [](const Flat& f) { return f.additional && !f.additional->empty(); };
  if ((restricts(*flat) && !own.pattern_properties.empty()) ||
      (restricts(own) && !flat->pattern_properties.empty())) {
    fail(where_of(node.pointer),
         "patternProperties and additionalProperties of two subschemas for "
         "one object are not supported; try both in one");
  }
  spend(static_cast<int64_t>(own.properties.size() + flat->properties.size()),
        where_of(node.pointer));
  std::map<std::string, size_t> mine, theirs;
  for (size_t i = 0; i < own.properties.size(); ++i) {
    mine.emplace(own.properties[i].name, i);
  }
  for (size_t i = 0; i < flat->properties.size(); ++i) {
    theirs.emplace(flat->properties[i].name, i);
    // A name that only the others declare is an additional one here.
    if (own.additional && !mine.contains(flat->properties[i].name)) {
      Goal& goal = flat->properties[i].goal;
      const std::optional<Goal> here = property_goal(own, flat->properties[i].name);
      goal = both(goal, here.value_or(Goal{}));
    }
  }
  for (Property& property : own.properties) {
    if (const auto it = theirs.find(property.name); it != theirs.end()) {
      Goal& goal = flat->properties[it->second].goal;
      goal = both(goal, property.goal);
      continue;
    }
    if (flat->additional) {
      const std::optional<Goal> there = property_goal(*flat, property.name);
      property.goal = both(property.goal, there.value_or(Goal{}));
    }
    flat->properties.push_back(property);
  }
  flat->pattern_properties.insert(flat->pattern_properties.end(), own.pattern_properties.begin(),
                                  own.pattern_properties.end());
  if (own.additional) {
    flat->additional = both(flat->additional.value_or(Goal{}), *own.additional);
  }
}

}  // namespace hocket::serve::grammar

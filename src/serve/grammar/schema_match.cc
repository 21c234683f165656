// SPDX-License-Identifier: Apache-2.0
// Implements: SchemaReader::matches and require_one (schema.h). A text that is written for a branch
// is narrower than what is valid: `written` is the former, `valid` the latter.
#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "serve/grammar/formats.h"
#include "serve/grammar/schema.h"

namespace hocket::serve::grammar {
namespace {

constexpr int kMaxDisjointDepth = 4;  // of values inside one another

uint8_t type_of(const Schema& value) {
  switch (value.type()) {
    case Schema::value_t::null:
      return kNull;
    case Schema::value_t::boolean:
      return kBoolean;
    case Schema::value_t::object:
      return kObject;
    case Schema::value_t::array:
      return kArray;
    case Schema::value_t::string:
      return kString;
    case Schema::value_t::number_integer:
    case Schema::value_t::number_unsigned:
      return kInteger;
    default:
      break;
  }
  const std::optional<Decimal> decimal = decimal_of(value);
  return decimal && decimal->is_integer() ? kInteger : kReal;
}

bool within(int64_t count, int64_t least, int64_t most) {
  return count >= least && (most < 0 || count <= most);
}

/// Returns whether no count is within both.
bool apart(int64_t least_a, int64_t most_a, int64_t least_b, int64_t most_b) {
  return (most_a >= 0 && most_a < least_b) || (most_b >= 0 && most_b < least_a);
}

}  // namespace

bool SchemaReader::matches(const Goal& goal, const Schema& value) {
  if (goal.empty()) return true;
  const std::vector<Flat>& all = alternatives(goal);
  return std::any_of(all.begin(), all.end(), [&](const Flat& f) { return matches(f, value); });
}

bool SchemaReader::matches(const Flat& flat, const Schema& value) {
  spend(1, flat.where);
  const uint8_t type = type_of(value);
  if ((flat.types & type) == 0) return false;
  if (flat.values) {
    const std::string text = canonical_json(value);
    spend(static_cast<int64_t>(flat.values->size()), flat.where);
    if (std::none_of(flat.values->begin(), flat.values->end(),
                     [&](const Schema& each) { return canonical_json(each) == text; })) {
      return false;
    }
  }
  for (const OneOf& choice : flat.choices) {
    for (size_t i = 0; i < choice.branches.size(); ++i) {
      if (i != choice.taken && matches(Goal{choice.branches[i]}, value)) return false;
    }
  }
  switch (type) {
    case kObject:
      return matches_object(flat, value);
    case kArray:
      return matches_array(flat, value);
    case kString:
      return matches_string(flat, value.get_ref<const std::string&>());
    case kInteger:
    case kReal: {
      const std::optional<Decimal> decimal = decimal_of(value);
      return decimal && flat.numbers.matches(*decimal);
    }
    default:
      return true;
  }
}

bool SchemaReader::matches_string(const Flat& flat, const std::string& value) {
  int64_t length = 0;
  for (size_t at = 0; at < value.size(); ++length) {
    const int bytes = utf8_length(value, at);
    if (bytes == 0) return false;
    at += static_cast<size_t>(bytes);
  }
  if (!within(length, flat.min_length, flat.max_length)) return false;
  for (const auto& [text, where] : flat.patterns) {
    if (!pattern(text, where).matches(value)) return false;
  }
  return true;  // the pattern of a format accepts fewer texts than are valid
}

bool SchemaReader::has_formats(const Flat& flat, const Schema& value) {
  if (!value.is_string()) return true;
  const auto& text = value.get_ref<const std::string&>();
  return std::all_of(flat.formats.begin(), flat.formats.end(), [&](const std::string& name) {
    return pattern(std::string(find_format(name)->pattern), flat.where).matches(text);
  });
}

bool SchemaReader::matches_array(const Flat& flat, const Schema& value) {
  if (!within(static_cast<int64_t>(value.size()), flat.min_items, flat.max_items)) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    const Goal goal = i < flat.prefix.size() ? flat.prefix[i] : flat.items.value_or(Goal{});
    if (!matches(goal, value[i])) return false;
  }
  return true;
}

bool SchemaReader::matches_object(const Flat& flat, const Schema& value) {
  const auto count = static_cast<int64_t>(value.size());
  if (!within(count, flat.min_properties, flat.max_properties)) return false;
  if (std::any_of(flat.required.begin(), flat.required.end(),
                  [&](const std::string& name) { return !value.contains(name); })) {
    return false;
  }
  for (const auto& [name, member] : value.items()) {
    if (!matches(flat.names, Schema(name))) return false;
    if (!matches(property_goal(flat, name).value_or(Goal{}), member)) return false;
  }
  return true;
}

void SchemaReader::require_one(const Flat& flat) {
  for (const OneOf& choice : flat.choices) {
    for (size_t i = 0; i < choice.branches.size(); ++i) {
      if (i == choice.taken) continue;
      for (const Flat& other : alternatives(Goal{choice.branches[i]})) {
        if (disjoint(flat, other, 0)) continue;
        const auto pointer = [&](size_t branch) {
          return nodes_[static_cast<size_t>(choice.branches[branch])].pointer;
        };
        fail(where_of(pointer(choice.taken)),
             "branch of oneOf may hold together with {}, and exactly one must; try anyOf, or a "
             "property with a const of its own in each branch",
             pointer(i));
      }
    }
  }
}

bool SchemaReader::disjoint(const Goal& written, const Goal& valid, int depth) {
  if (depth > kMaxDisjointDepth) return false;
  const std::vector<Flat> any(1);
  const std::vector<Flat>& a = written.empty() ? any : alternatives(written);
  const std::vector<Flat>& b = valid.empty() ? any : alternatives(valid);
  return std::all_of(a.begin(), a.end(), [&](const Flat& x) {
    return std::all_of(b.begin(), b.end(),
                       [&](const Flat& y) { return disjoint(x, y, depth + 1); });
  });
}

bool SchemaReader::disjoint(const Flat& written, const Flat& valid, int depth) {
  spend(5, written.where);
  if (written.values) {
    return std::none_of(written.values->begin(), written.values->end(), [&](const Schema& value) {
      return matches(written, value) && matches(valid, value);
    });
  }
  const auto types = static_cast<uint8_t>(written.written_types() & valid.types);
  if (types == 0) return true;
  if (valid.values) {
    // A written text is narrower than the values that match, so none of these is enough.
    return std::none_of(valid.values->begin(), valid.values->end(), [&](const Schema& value) {
      return matches(valid, value) && matches(written, value);
    });
  }
  if ((types & (kNull | kBoolean)) != 0) return false;
  if ((types & (kInteger | kReal)) != 0) {
    NumberLimits limits = written.numbers;
    if (valid.numbers.low) {
      limits.raise(*valid.numbers.low);
    }
    if (valid.numbers.high) {
      limits.lower(*valid.numbers.high);
    }
    if (!limits.empty((types & kReal) == 0)) return false;
  }
  if ((types & kString) != 0 && !disjoint_strings(written, valid)) return false;
  if ((types & kArray) != 0 && !disjoint_arrays(written, valid, depth)) return false;
  return (types & kObject) == 0 || disjoint_objects(written, valid, depth);
}

bool SchemaReader::disjoint_strings(const Flat& a, const Flat& b) {
  if (apart(a.min_length, a.max_length, b.min_length, b.max_length)) return true;
  const std::optional<CharDfa> dfa_a = string_dfa(a, false), dfa_b = string_dfa(b, false);
  if (!dfa_a || !dfa_b) return false;
  // A format's pattern accepts fewer texts than are valid: only the other's pattern may be one.
  if (!b.formats.empty()) return false;
  const std::optional<CharDfa> shared = dfa_combine(*dfa_a, *dfa_b, DfaOp::both);
  return shared && shared->empty();
}

bool SchemaReader::disjoint_arrays(const Flat& written, const Flat& valid, int depth) {
  if (apart(written.min_items, written.max_items, valid.min_items, valid.max_items)) return true;
  const int64_t sure = std::max(written.min_items, valid.min_items);
  for (size_t i = 0; static_cast<int64_t>(i) < std::min<int64_t>(sure, 16); ++i) {
    const std::optional<Goal> goal = written.written_item(i);
    if (!goal) return true;
    const Goal other = i < valid.prefix.size() ? valid.prefix[i] : valid.items.value_or(Goal{});
    if (disjoint(*goal, other, depth)) return true;
  }
  return false;
}

bool SchemaReader::disjoint_objects(const Flat& written, const Flat& valid, int depth) {
  if (apart(written.min_properties, written.max_properties, valid.min_properties,
            valid.max_properties)) {
    return true;
  }
  // A property that both have, or that one must have and the other must not.
  std::set<std::string> names(written.required.begin(), written.required.end());
  names.insert(valid.required.begin(), valid.required.end());
  for (const std::string& name : names) {
    const std::optional<Goal> goal = property_goal(written, name);
    const bool absent = !goal && written.written_closed() && !written.requires_name(name);
    if (absent) return true;
    const Goal other = property_goal(valid, name).value_or(Goal{});
    if (disjoint(goal.value_or(Goal{}), other, depth)) return true;
  }
  return false;
}

}  // namespace hocket::serve::grammar

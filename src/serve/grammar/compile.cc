// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/compile.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace hocket::serve::grammar {
namespace {

constexpr int kMaxIndent = 48;               // blanks and tabs behind a line's end
constexpr size_t kMaxExpressions = 400'000;  // some 60 MB
constexpr size_t kMaxRules = 20'000;
constexpr int64_t kMaxMemberCounts = 50'000;  // members times counts
constexpr size_t kMaxMembers = 4'000;         // of one object; all that may come next are tried

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int32_t kMaxUnionStates = 2'000;       // of automata that are made one
constexpr int64_t kMaxUnionWork = 4'000'000;     // edges of all unions of one value
constexpr int64_t kFailedUnionWork = 1'000'000;  // counted for one with too many states

/// Merges ranges of lengths that overlap or touch.
std::vector<std::pair<int64_t, int64_t>> merged(std::vector<std::pair<int64_t, int64_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const auto& [least, most] : ranges) {
    if (!out.empty() && (out.back().second == kNoLimit || least <= out.back().second + 1)) {
      out.back().second = std::max(out.back().second, most);
    } else {
      out.emplace_back(least, most);
    }
  }
  return out;
}

/// Makes an automaton one with the last of others, so that one text is not read in many ways; it
/// stays apart where their union has too many states, or unions took too much work.
void add_to_union(CharDfa dfa, std::vector<CharDfa>* all, int64_t* work) {
  const bool may_fit = !all->empty() && all->back().states() + dfa.states() <= kMaxUnionStates;
  if (may_fit && *work < kMaxUnionWork) {
    std::optional<CharDfa> both = dfa_combine(all->back(), dfa, DfaOp::either);
    if (both && both->states() <= kMaxUnionStates) {
      *work += std::ssize(both->next);
      all->back() = *std::move(both);
      return;
    }
    *work += kFailedUnionWork;
  }
  all->push_back(std::move(dfa));
}

/// Returns how many more may come; -1: any number.
int64_t left_of(int64_t most, int64_t written) { return most < 0 ? -1 : most - written; }

}  // namespace

JsonParts::JsonParts(Grammar* grammar) : g_(*grammar) {
  const ExprId line = g_.sequence({g_.text("\n"), g_.repeat(g_.one_of(" \t"), 0, kMaxIndent)});
  space_ = g_.optional(g_.choice({g_.text(" "), line}));
  separator_ = g_.sequence({g_.text(","), space_});
  number_ = g_.dfa(number_dfa({}, /*integers=*/false, "json"));
  integer_ = g_.dfa(number_dfa({}, /*integers=*/true, "json"));
}

ExprId JsonParts::quoted(ExprId content) {
  return g_.sequence({g_.text("\""), content, g_.text("\"")});
}

ExprId JsonParts::any_string() { return quoted(g_.repeat(g_.any_char(), 0, -1)); }

ExprId JsonParts::any(int depth) {
  while (static_cast<int>(any_.size()) <= depth) {
    std::vector<ExprId> parts = {g_.text("null"), g_.text("true"), g_.text("false"), number_,
                                 any_string()};
    if (!any_.empty()) {
      const ExprId item = any_.back();
      const ExprId items =
          g_.sequence({item, g_.repeat(g_.sequence({separator_, item}), 0, -1), space_});
      parts.push_back(any_object_of(static_cast<int>(any_.size()) - 1));
      parts.push_back(g_.sequence({g_.text("["), space_, g_.optional(items), g_.text("]")}));
    }
    any_.push_back(g_.choice(std::move(parts)));
  }
  return any_[static_cast<size_t>(depth)];
}

ExprId JsonParts::any_object_of(int depth) {
  const ExprId member = g_.sequence({any_string(), g_.text(":"), space_, any(depth)});
  const ExprId members =
      g_.sequence({member, g_.repeat(g_.sequence({separator_, member}), 0, -1), space_});
  return g_.sequence({g_.text("{"), space_, g_.optional(members), g_.text("}")});
}

ExprId JsonParts::key(const std::string& name) {
  if (is_ascii(name)) return g_.sequence({g_.text(Schema(name).dump() + ":"), space_});
  return g_.sequence({quoted(g_.texts({name})), g_.text(":"), space_});
}

ExprId JsonParts::listed(const char* open, const std::vector<ExprId>& parts, const char* close) {
  std::vector<ExprId> all = {g_.text(open), space_};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) {
      all.push_back(separator_);
    }
    all.push_back(parts[i]);
  }
  if (!parts.empty()) {
    all.push_back(space_);
  }
  all.push_back(g_.text(close));
  return g_.sequence(std::move(all));
}

ExprId JsonParts::constant(const Schema& value) {
  std::vector<ExprId> parts;
  if (value.is_string()) return quoted(g_.texts({value.get<std::string>()}));
  if (value.is_array()) {
    for (const Schema& each : value) {
      parts.push_back(constant(each));
    }
    return listed("[", parts, "]");
  }
  if (value.is_object()) {
    for (const auto& [name, each] : value.items()) {
      parts.push_back(g_.sequence({key(name), constant(each)}));
    }
    return listed("{", parts, "}");
  }
  return g_.text(value.dump());
}

ExprId SchemaCompiler::compile(const Goal& goal) {
  const ExprId root = value(goal);
  while (!open_.empty()) {
    const auto [next, rule] = open_.front();
    open_.pop_front();
    g_.set_rule(rule, body(next));
    if (g_.size() > kMaxExpressions || rules_.size() > kMaxRules) {
      fail(reader_.where(next),
           "schema is too large; got {} expressions for {} subschemas; "
           "expected at most {} and {}",
           g_.size(), rules_.size(), kMaxExpressions, kMaxRules);
    }
  }
  return root;
}

ExprId SchemaCompiler::value(const Goal& goal) {
  if (goal.empty()) return parts_.any_value();
  const auto it = rules_.find(goal);
  if (it != rules_.end()) return g_.call(it->second);
  const RuleId rule = g_.add_rule();
  rules_.emplace(goal, rule);
  open_.emplace_back(goal, rule);
  return g_.call(rule);
}

ExprId SchemaCompiler::body(const Goal& goal) {
  std::vector<ExprId> parts;
  std::vector<const Flat*> texts;
  for (const Flat& each : reader_.alternatives(goal)) {
    reader_.require_one(each);
    if (each.values || (each.written_types() & ~kString) != 0) {
      parts.push_back(flat(each));
    }
    if (!each.values && (each.written_types() & kString) != 0) {
      texts.push_back(&each);
    }
  }
  if (!texts.empty()) {
    parts.push_back(strings(texts));
  }
  return g_.choice(std::move(parts));
}

ExprId SchemaCompiler::flat(const Flat& flat) {
  if (flat.values) return values(flat);
  const uint8_t types = flat.written_types();
  std::vector<ExprId> parts;
  if ((types & kNull) != 0) {
    parts.push_back(g_.text("null"));
  }
  if ((types & kBoolean) != 0) {
    parts.push_back(g_.text("true"));
    parts.push_back(g_.text("false"));
  }
  if ((types & (kInteger | kReal)) != 0) {
    parts.push_back(number(flat));
  }
  if ((types & kArray) != 0) {
    parts.push_back(array(flat));
  }
  if ((types & kObject) != 0) {
    parts.push_back(object(flat));
  }
  return g_.choice(std::move(parts));
}

ExprId SchemaCompiler::values(const Flat& flat) {
  std::vector<ExprId> parts;
  std::vector<std::string> texts;
  Flat others = flat;
  others.values.reset();
  std::vector<std::string> numbers;
  for (const Schema& value : *flat.values) {
    if (!reader_.matches(others, value) || !reader_.has_formats(flat, value)) continue;
    if (value.is_string()) {
      texts.push_back(value.get<std::string>());
    } else if (value.is_number()) {
      numbers.push_back(value.dump());
    } else {
      parts.push_back(parts_.constant(value));
    }
  }
  if (!numbers.empty()) {
    parts.push_back(g_.texts(std::move(numbers)));
  }
  if (!texts.empty()) {
    parts.push_back(parts_.quoted(g_.texts(std::move(texts))));
  }
  return g_.choice(std::move(parts));
}

ExprId SchemaCompiler::number(const Flat& flat) {
  const bool integers = (flat.types & kReal) == 0;
  if (!flat.numbers.bounded()) return integers ? parts_.any_integer() : parts_.any_number();
  if (flat.numbers.empty(integers)) return g_.nothing();
  return g_.dfa(number_dfa(flat.numbers, integers, flat.where));
}

ExprId SchemaCompiler::strings(const std::vector<const Flat*>& texts) {
  std::vector<CharDfa> dfas;
  int64_t work = 0;
  std::vector<std::pair<int64_t, int64_t>> lengths;  // least and most
  for (const Flat* flat : texts) {
    const bool none = flat->max_length >= 0 && flat->max_length < flat->min_length;
    if (std::optional<CharDfa> dfa = reader_.string_dfa(*flat, /*lengths=*/false)) {
      add_to_union(*std::move(dfa), &dfas, &work);
    } else if (!none) {
      lengths.emplace_back(flat->min_length, flat->max_length < 0 ? kNoLimit : flat->max_length);
    }
  }
  std::vector<ExprId> parts;
  for (const CharDfa& dfa : dfas) {
    parts.push_back(g_.dfa(dfa));
  }
  for (const auto& [least, most] : merged(std::move(lengths))) {
    parts.push_back(g_.repeat(g_.any_char(), least, most == kNoLimit ? -1 : most));
  }
  return parts.empty() ? g_.nothing() : parts_.quoted(g_.choice(std::move(parts)));
}

ExprId SchemaCompiler::array(const Flat& flat) {
  const int64_t least = flat.min_items, most = flat.max_items;
  if (most >= 0 && most < least) return g_.nothing();
  std::vector<ExprId> prefix;
  for (const Goal& goal : flat.prefix) {
    prefix.push_back(value(goal));
  }
  std::optional<ExprId> item;
  if (const std::optional<Goal> goal = flat.written_item(flat.prefix.size())) {
    item = value(*goal);
  }
  if (prefix.empty() && item) {
    prefix.push_back(*item);
  }
  if (most >= 0 && static_cast<int64_t>(prefix.size()) > most) {
    prefix.resize(static_cast<size_t>(most));
  }
  const auto count = static_cast<int64_t>(prefix.size());
  const ExprId close = g_.sequence({parts_.space(), g_.text("]")});
  ExprId behind = g_.nothing();  // the elements behind the prefix, and the end
  if (item && most != count) {
    const ExprId more = g_.sequence({parts_.separator(), *item});
    behind = g_.sequence(
        {g_.repeat(more, std::max<int64_t>(0, least - count), left_of(most, count)), close});
  }
  if (count >= least) {
    behind = g_.choice({behind, close});
  }
  for (int64_t i = count - 1; i > 0; --i) {
    const ExprId next = g_.sequence({parts_.separator(), prefix[static_cast<size_t>(i)], behind});
    behind = i >= least ? g_.choice({next, close}) : next;
  }
  std::vector<ExprId> bodies;
  if (least == 0) {
    bodies.push_back(g_.text("]"));
  }
  if (count > 0) {
    bodies.push_back(g_.sequence({prefix[0], behind}));
  }
  return g_.sequence({g_.text("["), parts_.space(), g_.choice(std::move(bodies))});
}

std::vector<SchemaCompiler::Member> SchemaCompiler::members(const Flat& flat,
                                                            std::vector<std::string>* names) {
  std::vector<Member> out;
  for (const Property& property : flat.properties) {
    names->push_back(property.name);
  }
  for (const std::string& name : flat.required) {
    if (flat.find(name) == nullptr) {
      names->push_back(name);
    }
  }
  if (names->size() > kMaxMembers) {
    fail(flat.where, "too many properties; got {}; expected at most {}", names->size(),
         kMaxMembers);
  }
  const std::set<std::string> required(flat.required.begin(), flat.required.end());
  for (const std::string& name : *names) {
    const Goal goal = reader_.property_goal(flat, name).value_or(Goal{});
    const bool named = flat.names.empty() || reader_.matches(flat.names, Schema(name));
    const ExprId member = named ? g_.sequence({parts_.key(name), value(goal)}) : g_.nothing();
    out.push_back({member, required.contains(name)});
  }
  return out;
}

std::optional<ExprId> SchemaCompiler::others(const Flat& flat,
                                             const std::vector<std::string>& names) {
  const Goal additional = flat.additional.value_or(Goal{});
  const bool open =
      !flat.written_closed() && (additional.empty() || !reader_.alternatives(additional).empty());
  if (!open && flat.pattern_properties.empty()) return std::nullopt;
  const auto checked = [&](std::optional<CharDfa> dfa) {
    if (!dfa) fail(flat.where, "names of properties need too many states; try fewer of them");
    return *std::move(dfa);
  };
  const std::optional<CharDfa> allowed = reader_.strings_of(flat.names);
  if (open && names.empty() && !allowed && flat.pattern_properties.empty()) {
    return g_.sequence({parts_.any_string(), g_.text(":"), parts_.space(), value(additional)});
  }
  CharDfa free = allowed ? *allowed : checked(dfa_of_lengths(0, -1));
  free = checked(dfa_combine(free, checked(dfa_of_texts(names)), DfaOp::first_only));
  std::vector<ExprId> parts;
  const auto add = [&](const CharDfa& keys, const Goal& goal) {
    parts.push_back(
        g_.sequence({parts_.quoted(g_.dfa(keys)), g_.text(":"), parts_.space(), value(goal)}));
  };
  for (const PatternProperty& each : flat.pattern_properties) {
    CharDfa keys =
        checked(dfa_combine(free, reader_.pattern(each.pattern, each.where), DfaOp::both));
    for (const PatternProperty& other : flat.pattern_properties) {
      if (other.pattern != each.pattern) {
        keys = checked(
            dfa_combine(keys, reader_.pattern(other.pattern, other.where), DfaOp::first_only));
      }
    }
    add(keys, each.goal);
  }
  if (open) {
    CharDfa keys = free;
    for (const PatternProperty& each : flat.pattern_properties) {
      keys =
          checked(dfa_combine(keys, reader_.pattern(each.pattern, each.where), DfaOp::first_only));
    }
    add(keys, additional);
  }
  return g_.choice(std::move(parts));
}

void SchemaCompiler::refuse_counts(const Flat& flat) {
  fail(flat.where,
       "minProperties and maxProperties need too many states; got {} and {}; try "
       "without them",
       flat.min_properties, flat.max_properties);
}

ExprId SchemaCompiler::object(const Flat& flat) {
  if (flat.max_properties >= 0 && flat.max_properties < flat.min_properties) return g_.nothing();
  std::vector<std::string> names;
  const std::vector<Member> declared = members(flat, &names);
  const std::optional<ExprId> more = others(flat, names);
  // Names of other members may be equal, so only the first of them surely counts.
  const auto sure = static_cast<int64_t>(declared.size()) + (more ? 1 : 0);
  const bool none = flat.additional && !more;
  if (flat.min_properties > sure && !none) {
    fail(flat.where,
         "minProperties is supported up to the number of properties, and one more with "
         "additionalProperties; got {}; expected at most {}",
         flat.min_properties, sure);
  }
  const ExprId body = members_in_order(flat, declared, more);
  return g_.sequence({g_.text("{"), parts_.space(), body});
}

ExprId SchemaCompiler::other_members(const Flat& flat, std::optional<ExprId> others,
                                     int64_t written) {
  const int64_t left = left_of(flat.max_properties, written);
  if (!others || left == 0 || written + 1 < flat.min_properties) return g_.nothing();
  const ExprId more = g_.sequence({parts_.separator(), *others});
  return g_.sequence(
      {*others, g_.repeat(more, 0, left < 0 ? -1 : left - 1), parts_.space(), g_.text("}")});
}

ExprId SchemaCompiler::members_in_order(const Flat& flat, const std::vector<Member>& members,
                                        std::optional<ExprId> others) {
  const auto count = static_cast<int64_t>(members.size());
  // Numbers of written members are told apart up to here.
  int64_t counts = std::max<int64_t>(flat.min_properties, 0);
  if (flat.max_properties >= 0) {
    counts = std::max(counts, std::min(flat.max_properties, count));
  }
  counts = std::min(counts, count);
  if ((count + 1) * (counts + 1) > kMaxMemberCounts) {
    refuse_counts(flat);
  }
  const ExprId close = g_.sequence({parts_.space(), g_.text("}")});
  bool optional = true;  // no required member is left
  // By members written: a member comes next; a comma and a member, or the end.
  std::vector<ExprId> next(static_cast<size_t>(counts) + 1), rest(next.size());
  for (int64_t i = count; i >= 0; --i) {
    std::vector<ExprId> next_here(next.size()), rest_here(next.size());
    const bool last = i == count;
    const bool required = !last && members[static_cast<size_t>(i)].required;
    optional = optional && !required;
    for (int64_t written = 0; written <= counts; ++written) {
      const auto at = static_cast<size_t>(written);
      const auto after = static_cast<size_t>(std::min(written + 1, counts));
      std::vector<ExprId> parts;
      const bool full = flat.max_properties >= 0 && written >= flat.max_properties;
      if (last) {
        parts.push_back(other_members(flat, others, written));
      } else {
        if (!full) {
          parts.push_back(g_.sequence({members[static_cast<size_t>(i)].expr, rest[after]}));
        }
        if (!required) {
          parts.push_back(next[at]);
        }
      }
      next_here[at] = g_.choice(std::move(parts));
      rest_here[at] = g_.sequence({parts_.separator(), next_here[at]});
      if (optional && written >= flat.min_properties) {
        rest_here[at] = g_.choice({rest_here[at], close});
      }
    }
    next = std::move(next_here);
    rest = std::move(rest_here);
  }
  if (!optional || flat.min_properties > 0) return next[0];
  return g_.choice({next[0], g_.text("}")});
}

}  // namespace hocket::serve::grammar

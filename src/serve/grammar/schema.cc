// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/schema.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "serve/grammar/formats.h"
#include "serve/grammar/pattern.h"

namespace hocket::serve::grammar {
namespace {

constexpr size_t kMaxAlternatives = 2'000;  // of one goal
constexpr int64_t kMaxSchemaWork = 1'000'000;
constexpr int kMaxRefs = 500;  // one after the other

constexpr const char* kTryLess = "try fewer branches of anyOf, oneOf and allOf";

/// Decodes a key of a JSON pointer in a URI's fragment. None: bad escapes.
std::optional<std::string> decoded_key(std::string_view key) {
  std::string out;
  for (size_t i = 0; i < key.size(); ++i) {
    if (key[i] == '%') {
      if (i + 2 >= key.size()) return std::nullopt;
      char* end = nullptr;
      const std::string digits(key.substr(i + 1, 2));
      out.push_back(static_cast<char>(std::strtol(digits.c_str(), &end, 16)));
      if (*end != '\0') return std::nullopt;
      i += 2;
    } else {
      out.push_back(key[i]);
    }
  }
  std::string plain;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] != '~') {
      plain.push_back(out[i]);
    } else if (i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1')) {
      plain.push_back(out[++i] == '0' ? '~' : '/');
    } else {
      return std::nullopt;
    }
  }
  return plain;
}

}  // namespace

std::string canonical_json(const Schema& value) {
  if (value.is_number()) {
    const std::optional<Decimal> decimal = decimal_of(value);
    return decimal ? decimal->text() : value.dump();
  }
  if (value.is_array()) {
    std::string out = "[";
    for (const Schema& each : value) {
      out += canonical_json(each) + ",";
    }
    return out + "]";
  }
  if (value.is_object()) {
    std::map<std::string, std::string> members;
    for (const auto& [key, each] : value.items()) {
      members[Schema(key).dump(-1, ' ', false, Schema::error_handler_t::replace)] =
          canonical_json(each);
    }
    std::string out = "{";
    for (const auto& [key, each] : members) {
      out += key + ":" + each + ",";
    }
    return out + "}";
  }
  return value.dump(-1, ' ', false, Schema::error_handler_t::replace);
}

const Property* Flat::find(const std::string& name) const {
  const auto it = std::find_if(properties.begin(), properties.end(),
                               [&](const Property& p) { return p.name == name; });
  return it == properties.end() ? nullptr : &*it;
}

bool Flat::requires_name(const std::string& name) const {
  return std::find(required.begin(), required.end(), name) != required.end();
}

uint8_t Flat::written_types() const {
  return typed || hints == 0 ? types : static_cast<uint8_t>(types & hints);
}

bool Flat::written_closed() const {
  if (additional) return false;  // `false` is a goal that nothing holds
  return declares || !required.empty() || !pattern_properties.empty();
}

std::optional<Goal> Flat::written_item(size_t index) const {
  if (index < prefix.size()) return prefix[index];
  if (items) return *items;
  const bool open = prefix.empty() || min_items > static_cast<int64_t>(prefix.size());
  return open ? std::optional<Goal>(Goal{}) : std::nullopt;
}

SchemaReader::SchemaReader(Schema root) : root_(std::move(root)) {}

Goal SchemaReader::both(const Goal& a, const Goal& b) {
  Goal out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

Goal SchemaReader::goal_of(const Schema& schema, const std::string& pointer) {
  const bool any =
      (schema.is_boolean() && schema.get<bool>()) || (schema.is_object() && schema.empty());
  return any ? Goal{} : Goal{node_of(schema, pointer)};
}

NodeId SchemaReader::node_of(const Schema& json, const std::string& pointer) {
  const auto [it, made] = node_ids_.emplace(&json, static_cast<NodeId>(nodes_.size()));
  if (made) {
    nodes_.push_back({&json, pointer});
  }
  return it->second;
}

std::string SchemaReader::where(const Goal& goal) const {
  return where_of(goal.empty() ? "#" : nodes_[static_cast<size_t>(goal[0])].pointer);
}

std::vector<NodeId> SchemaReader::members(const Schema& list, const std::string& pointer) {
  if (!list.is_array() || list.empty()) {
    fail(where_of(pointer), "no list of schemas; got {}; expected a list that is not empty",
         quote(list.dump(-1, ' ', false, Schema::error_handler_t::replace)));
  }
  std::vector<NodeId> out;
  for (size_t i = 0; i < list.size(); ++i) {
    out.push_back(node_of(list[i], fmt::format("{}/{}", pointer, i)));
  }
  return out;
}

const Schema& SchemaReader::resolve(const std::string& ref, const std::string& where,
                                    std::string* pointer) const {
  if (!ref.starts_with("#") || (ref.size() > 1 && ref[1] != '/')) {
    fail(where, "$ref {} is not supported; expected # or #/... in the same schema", quote(ref));
  }
  const Schema* at = &root_;
  *pointer = ref;
  for (size_t begin = 2; begin <= ref.size();) {
    const size_t end = std::min(ref.find('/', begin), ref.size());
    const std::optional<std::string> key =
        decoded_key(std::string_view(ref).substr(begin, end - begin));
    const Schema* next = nullptr;
    if (key && at->is_object()) {
      const auto it = at->find(*key);
      next = it == at->end() ? nullptr : &*it;
    } else if (key && at->is_array() && !key->empty() && key->size() < 9 &&
               key->find_first_not_of("0123456789") == std::string::npos) {
      const auto index = static_cast<size_t>(std::strtoull(key->c_str(), nullptr, 10));
      next = index < at->size() ? &(*at)[index] : nullptr;
    }
    if (next == nullptr) fail(where, "$ref {} leads to nothing", quote(ref));
    at = next;
    begin = end + 1;
  }
  return *at;
}

std::vector<NodeId> SchemaReader::same_level(NodeId id) {
  const Node node = nodes_[static_cast<size_t>(id)];
  std::vector<NodeId> out;
  if (!node.json->is_object()) return out;
  for (const char* key : {"allOf", "anyOf", "oneOf"}) {
    if (const auto it = node.json->find(key); it != node.json->end()) {
      const std::vector<NodeId> more = members(*it, node.pointer + "/" + key);
      out.insert(out.end(), more.begin(), more.end());
    }
  }
  if (const auto it = node.json->find("$ref"); it != node.json->end() && it->is_string()) {
    std::string pointer;
    const Schema& target =
        resolve(it->get_ref<const std::string&>(), where_of(node.pointer), &pointer);
    out.push_back(node_of(target, pointer));
  }
  return out;
}

void SchemaReader::require_progress(NodeId node, int depth) {
  const std::string where = where_of(nodes_[static_cast<size_t>(node)].pointer);
  if (depth > kMaxRefs) fail(where, "more than {} subschemas of one value", kMaxRefs);
  const auto [it, made] = progress_.emplace(node, false);
  if (!made) {
    if (!it->second) fail(where, "$ref leads back here without a value between");
    return;
  }
  for (NodeId next : same_level(node)) {
    require_progress(next, depth + 1);
  }
  progress_[node] = true;
}

void SchemaReader::spend(int64_t work, const std::string& where) {
  work_ += work + 1;
  if (work_ > kMaxSchemaWork) fail(where, "schema is too large or too ambiguous; {}", kTryLess);
}

void SchemaReader::warn(std::string text) {
  if (std::find(warnings_.begin(), warnings_.end(), text) == warnings_.end()) {
    warnings_.push_back(std::move(text));
  }
}

const std::vector<Flat>& SchemaReader::alternatives(const Goal& goal) {
  if (const auto it = alternatives_.find(goal); it != alternatives_.end()) return it->second;
  for (NodeId node : goal) {
    require_progress(node, 0);
  }
  std::vector<Flat> out;
  std::vector<Work> open(1);
  open[0].pending.assign(goal.begin(), goal.end());
  while (!open.empty()) {
    Work work = std::move(open.back());
    open.pop_back();
    bool holds = true;
    for (size_t i = 0; i < work.pending.size() && holds; ++i) {
      const NodeId node = work.pending[i];
      spend(static_cast<int64_t>(work.flat.properties.size()), where(goal));
      holds = !work.seen.insert(node).second || read(node, &work);
    }
    work.pending.clear();
    if (!holds) continue;
    if (work.branches.empty()) {
      spend(20, where(goal));
      out.push_back(std::move(work.flat));
      if (out.size() > kMaxAlternatives) {
        fail(where(goal), "more than {} alternatives; {}", kMaxAlternatives, kTryLess);
      }
      continue;
    }
    const Branches branches = std::move(work.branches.back());
    work.branches.pop_back();
    for (size_t i = branches.nodes.size(); i-- > 0;) {
      Work branch = work;
      spend(static_cast<int64_t>(work.flat.properties.size()), where(goal));
      branch.pending.push_back(branches.nodes[i]);
      if (branches.one && branches.nodes.size() > 1) {
        branch.flat.choices.push_back({branches.nodes, i});
      }
      open.push_back(std::move(branch));
    }
  }
  return alternatives_.emplace(goal, std::move(out)).first->second;
}

const CharDfa& SchemaReader::pattern(const std::string& pattern, const std::string& where) {
  auto it = patterns_.find(pattern);
  if (it == patterns_.end()) {
    CharDfa dfa = pattern_dfa(pattern, where);
    spend(static_cast<int64_t>(dfa.next.size() / 4), where);
    it = patterns_.emplace(pattern, std::move(dfa)).first;
  }
  return it->second;
}

std::optional<Goal> SchemaReader::property_goal(const Flat& flat, const std::string& name) {
  std::optional<Goal> goal;
  if (const Property* property = flat.find(name)) {
    goal = property->goal;
  }
  for (const PatternProperty& each : flat.pattern_properties) {
    if (pattern(each.pattern, each.where).matches(name)) {
      goal = both(goal.value_or(Goal{}), each.goal);
    }
  }
  return goal ? goal : flat.additional;
}

std::optional<CharDfa> SchemaReader::string_dfa(const Flat& flat, bool lengths) {
  std::optional<CharDfa> out;
  const auto restrict_to = [&](std::optional<CharDfa> dfa) {
    if (dfa && out) {
      dfa = dfa_combine(*out, *dfa, DfaOp::both);
    }
    if (!dfa) {
      fail(flat.where,
           "pattern, format and lengths together need too many states; got lengths up "
           "to {}; expected at most {} states",
           std::max(flat.min_length, flat.max_length), kMaxDfaStates);
    }
    spend(static_cast<int64_t>(dfa->next.size() / 4), flat.where);
    out = std::move(dfa);
  };
  for (const auto& [text, where] : flat.patterns) {
    restrict_to(pattern(text, where));
  }
  for (const std::string& name : flat.formats) {
    restrict_to(pattern(std::string(find_format(name)->pattern), flat.where));
  }
  const bool limited = flat.min_length > 0 || flat.max_length >= 0;
  if (limited && (out || lengths)) {
    if (flat.max_length >= 0 && flat.max_length < flat.min_length) return CharDfa{{0}, {}, {}};
    restrict_to(dfa_of_lengths(flat.min_length, flat.max_length));
  }
  return out;
}

std::optional<CharDfa> SchemaReader::strings_of(const Goal& goal) {
  if (goal.empty()) return std::nullopt;
  std::optional<CharDfa> all = CharDfa{{0}, {}, {}};
  for (const Flat& flat : alternatives(goal)) {
    if ((flat.types & kString) == 0) continue;
    if (!flat.choices.empty()) {
      fail(flat.where, "oneOf of a property's name is not supported; try anyOf");
    }
    std::optional<CharDfa> own = string_dfa(flat, /*lengths=*/true);
    if (flat.values) {
      std::vector<std::string> texts;
      for (const Schema& value : *flat.values) {
        if (value.is_string() && matches(flat, value)) {
          texts.push_back(value.get<std::string>());
        }
      }
      own = dfa_of_texts(texts);
      if (!own) fail(flat.where, "too many names");
    }
    if (!own) return std::nullopt;
    all = dfa_combine(*all, *own, DfaOp::either);
    if (!all) fail(flat.where, "names need too many states");
  }
  return all;
}

}  // namespace hocket::serve::grammar

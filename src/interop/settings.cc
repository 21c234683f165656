// SPDX-License-Identifier: Apache-2.0
#include "interop/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

// Errors as values need another interface of the parser.
#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace hocket::interop {

namespace {

ConfigNode scalar(std::string text, bool quoted) {
  ConfigNode node;
  node.kind = ConfigNode::Kind::scalar;
  node.text = std::move(text);
  node.quoted = quoted;
  return node;
}

ConfigNode from_toml(const toml::node& value, const std::string& name) {
  ConfigNode node;
  if (const toml::table* table = value.as_table()) {
    node.kind = ConfigNode::Kind::map;
    for (const auto& [key, inside] : *table) {
      node.keys.emplace_back(key.str());
      node.items.push_back(from_toml(inside, name));
    }
  } else if (const toml::array* array = value.as_array()) {
    node.kind = ConfigNode::Kind::list;
    for (const toml::node& entry : *array) {
      node.items.push_back(from_toml(entry, name));
    }
  } else if (value.is_string()) {
    node = scalar(value.value<std::string>().value_or(""), true);
  } else {
    std::ostringstream text;
    value.visit([&](const auto& of_type) { text << of_type; });
    node = scalar(text.str(), false);
  }
  node.where = fmt::format("{}:{}", name, value.source().begin.line);
  return node;
}

ConfigNode from_json(const nlohmann::json& value) {
  ConfigNode node;
  if (value.is_object()) {
    node.kind = ConfigNode::Kind::map;
    for (const auto& [key, inside] : value.items()) {
      node.keys.push_back(key);
      node.items.push_back(from_json(inside));
    }
  } else if (value.is_array()) {
    node.kind = ConfigNode::Kind::list;
    for (const nlohmann::json& entry : value) {
      node.items.push_back(from_json(entry));
    }
  } else if (value.is_string()) {
    node = scalar(value.get<std::string>(), true);
  } else if (!value.is_null()) {
    node = scalar(value.dump(), false);
  }
  return node;
}

/// A word of YAML 1.1, as PyYAML reads it.
bool parse_truth(const std::string& text, bool* out) {
  for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "on", "On"}) {
    if (text == word) return *out = true;
  }
  for (const char* word : {"false", "False", "FALSE", "no", "No", "off", "Off"}) {
    if (text == word) {
      *out = false;
      return true;
    }
  }
  return false;
}

bool parse_whole(const ConfigNode& node, int64_t* out) {
  if (node.kind != ConfigNode::Kind::scalar) return false;
  if (parse_int(node.text, out)) return true;
  double value = 0;
  if (!parse_double(node.text, &value) || value != static_cast<double>(static_cast<int64_t>(value)))
    return false;
  *out = static_cast<int64_t>(value);
  return node.text.find('e') != node.text.npos || node.text.find('E') != node.text.npos ||
         node.text.ends_with(".0");
}

/// A value as errors show it: texts in quotes.
std::string shown(const ConfigNode& node) {
  double number = 0;
  bool truth = false;
  const bool is_plain =
      node.kind != ConfigNode::Kind::scalar ||
      (!node.quoted && (parse_double(node.text, &number) || parse_truth(node.text, &truth)));
  return is_plain ? text_of(node) : quote(node.text);
}

}  // namespace

ConfigNode tree_of_toml(const std::string& text, const std::string& name) {
  try {
    return from_toml(toml::parse(text, name), name);
  } catch (const toml::parse_error& error) {
    fail(name, "line {}: {}; expected TOML", error.source().begin.line, error.description());
  }
}

ConfigNode tree_of_json(const std::string& text, const std::string& name) {
  return from_json(parse_json(text, name));
}

std::string text_of(const ConfigNode& node) {
  std::string text;
  switch (node.kind) {
    case ConfigNode::Kind::null:
      return "null";
    case ConfigNode::Kind::scalar:
      return node.text;
    case ConfigNode::Kind::list:
      for (const ConfigNode& item : node.items) {
        text += (text.empty() ? "" : ", ") + text_of(item);
      }
      return "[" + text + "]";
    case ConfigNode::Kind::map:
      for (size_t i = 0; i < node.keys.size(); ++i) {
        text += (text.empty() ? "" : ", ") + node.keys[i] + ": " + text_of(node.items[i]);
      }
      return "{" + text + "}";
  }
  return text;
}

std::string line_of(const ConfigNode& node) {
  const size_t colon = node.where.rfind(':');
  int64_t line = 0;
  if (colon == std::string::npos || !parse_int(node.where.substr(colon + 1), &line)) return "";
  return fmt::format("line {}: ", line);
}

Settings::Settings(ConfigNode root, std::string name, std::string tool, const KnownKeys& known,
                   Names names)
    : root_(std::move(root)),
      name_(std::move(name)),
      tool_(std::move(tool)),
      known_(known),
      names_(names ? std::move(names)
                   : [](const std::string& path) { return std::vector<std::string>{path}; }) {
  if (root_.kind != ConfigNode::Kind::map || root_.keys.empty()) {
    fail(name_, "has no keys; expected a file of {}", tool_);
  }
  list(root_, "");
  refuse_unknown();
}

/// Leaves are values, and lists of values.
void Settings::list(const ConfigNode& node, const std::string& path) {
  const auto is_leaf = [](const ConfigNode& one) {
    return one.kind == ConfigNode::Kind::null || one.kind == ConfigNode::Kind::scalar;
  };
  const bool of_values =
      node.kind == ConfigNode::Kind::list &&
      std::none_of(node.items.begin(), node.items.end(),
                   [](const ConfigNode& item) { return item.kind == ConfigNode::Kind::map; });
  if (is_leaf(node) || of_values || (node.items.empty() && !path.empty())) {
    leaves_.push_back({path, &node});
    return;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string part = node.kind == ConfigNode::Kind::map ? node.keys[i] : std::to_string(i);
    list(node.items[i], path.empty() ? part : path + "." + part);
  }
}

void Settings::refuse_unknown() const {
  for (const auto& [path, node] : leaves_) {
    if (known_.find(path) != nullptr) continue;
    // A section that is null or empty.
    const bool says_nothing = node->items.empty() && node->kind != ConfigNode::Kind::scalar;
    if (says_nothing && known_.has_section(path)) continue;
    fail(name_, "{}{} is {}, and no release of {} has that key; expected a known one{}",
         line_of(*node), path, shown(*node), tool_, try_nearest(known_, path));
  }
}

const ConfigNode* Settings::at(const std::string& path) const {
  const ConfigNode* node = &root_;
  for (const std::string& part : split(path, '.')) {
    int64_t index = 0;
    if (node->kind == ConfigNode::Kind::list && parse_int(part, &index)) {
      if (index < 0 || index >= std::ssize(node->items)) return nullptr;
      node = &node->items[static_cast<size_t>(index)];
      continue;
    }
    node = node->kind == ConfigNode::Kind::map ? node->find(part) : nullptr;
    if (node == nullptr) return nullptr;
  }
  return node;
}

const ConfigNode* Settings::node(const std::string& path) {
  const ConfigNode* found = nullptr;
  std::string found_as;
  for (const std::string& name : names_(path)) {
    asked_.insert(name);
    const ConfigNode* here = at(name);
    if (here == nullptr || here->kind == ConfigNode::Kind::null) continue;
    if (found != nullptr && text_of(*found) != text_of(*here)) {
      fail(name_, "{} is {} and {}, its name in another release, is {}; expected one of them",
           found_as, text_of(*found), name, text_of(*here));
    }
    if (found == nullptr) {
      found = here;
      found_as = name;
    }
  }
  return found;
}

std::string Settings::name_of(const std::string& path) const {
  for (const std::string& name : names_(path)) {
    if (at(name) != nullptr) return name;
  }
  return path;
}

int64_t Settings::integer(const std::string& path, int64_t otherwise) {
  const ConfigNode* found = node(path);
  if (!found) return otherwise;
  int64_t value = 0;
  if (found->quoted || !parse_whole(*found, &value)) refuse(path, "an integer");
  return value;
}

int64_t Settings::at_least(int64_t least, const std::string& path, int64_t otherwise) {
  const int64_t value = integer(path, otherwise);
  if (has(path) && value < least) refuse(path, fmt::format("at least {}", least));
  return value;
}

/// Returns a number, also a quoted one: PyYAML reads 1e-4 as a text, which trainers then convert.
double Settings::number(const std::string& path, double otherwise) {
  const ConfigNode* found = node(path);
  if (!found) return otherwise;
  double value = 0;
  if (found->kind != ConfigNode::Kind::scalar || !parse_double(found->text, &value)) {
    refuse(path, "a number");
  }
  return value;
}

std::string Settings::text(const std::string& path, const std::string& otherwise) {
  const ConfigNode* found = node(path);
  if (!found) return otherwise;
  if (found->kind != ConfigNode::Kind::scalar) refuse(path, "a text");
  return found->text;
}

bool Settings::truth(const std::string& path, bool otherwise) {
  const ConfigNode* found = node(path);
  if (!found) return otherwise;
  bool value = false;
  if (found->kind != ConfigNode::Kind::scalar || !parse_truth(found->text, &value)) {
    refuse(path, "true or false");
  }
  return value;
}

std::vector<std::string> Settings::texts(const std::string& path) {
  std::vector<std::string> list;
  const ConfigNode* found = node(path);
  if (!found) return list;
  if (found->kind == ConfigNode::Kind::scalar) return {found->text};
  if (found->kind != ConfigNode::Kind::list) refuse(path, "a list of names");
  for (const ConfigNode& item : found->items) {
    if (item.kind != ConfigNode::Kind::scalar) refuse(path, "a list of names");
    list.push_back(item.text);
  }
  return list;
}

std::string Settings::one_of(const std::string& path, const std::string& otherwise,
                             const std::vector<std::string>& values) {
  const std::string value = text(path, otherwise);
  if (std::find(values.begin(), values.end(), value) == values.end()) {
    refuse(path, "one of " + join(values, ", "));
  }
  return value;
}

void Settings::refuse(const std::string& path, const std::string& expected) {
  const ConfigNode* found = node(path);
  fail(name_, "{}{} is {}; expected {}", found ? line_of(*found) : "", name_of(path),
       found ? shown(*found) : "absent", expected);
}

void Settings::need_key(const std::string& path, const std::string& key, const std::string& why,
                        const Beside& beside) {
  if (!has(path) || beside.has(key) || !beside.keeps_plan) {
    leave(path, why);
    return;
  }
  fail(name_,
       "{}{} is {}, which would make another plan: {}; expected {} beside it; try --set "
       "{}=VALUE",
       line_of(*node(path)), name_of(path), shown(*node(path)), why, key, key);
}

bool Settings::is_used(const std::string& path) const {
  if (asked_.count(path) > 0) return true;
  return std::any_of(used_.begin(), used_.end(), [&](const std::string& above) {
    return path == above || path.starts_with(above + ".");
  });
}

KeyReport Settings::unread(const Beside& beside) const {
  KeyReport report;
  for (const auto& [path, node] : leaves_) {
    const auto reason = reasons_.find(path);
    if (reason == reasons_.end() && is_used(path)) continue;
    const std::string value = text_of(*node);
    const std::string text = fmt::format("{} = {}", path, shown_value(path, value));
    if (reason != reasons_.end()) {
      report.ignored.push_back(text + ": " + reason->second);
      continue;
    }
    const KnownKeys::Key* key = known_.find(path);
    // A key that is null says nothing.
    if (key == nullptr || node->kind == ConfigNode::Kind::null) continue;
    report_unread(*key, value, text, name_, beside, &report);
  }
  return report;
}

}  // namespace hocket::interop

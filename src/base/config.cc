// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/config_print.h"
#include "base/config_tree.h"
#include "base/error.h"
#include "base/file.h"
#include "base/id.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket {
namespace {

using Json = nlohmann::json;
using Kind = ConfigNode::Kind;

Json raw_json(const ConfigNode& node) {
  // Free-form sections (`model.config`) keep YAML's own typing: an unquoted scalar that reads as a
  // boolean or a number is one, everything else a string.
  switch (node.kind) {
    case Kind::null:
      return nullptr;
    case Kind::list: {
      Json out = Json::array();
      for (const ConfigNode& item : node.items) {
        out.push_back(raw_json(item));
      }
      return out;
    }
    case Kind::map: {
      Json out = Json::object();
      for (size_t i = 0; i < node.keys.size(); ++i) {
        out[node.keys[i]] = raw_json(node.items[i]);
      }
      return out;
    }
    case Kind::scalar:
      break;
  }
  if (!node.quoted) {
    int64_t integer = 0;
    double number = 0;
    if (node.text == "true") return true;
    if (node.text == "false") return false;
    if (parse_int(node.text, &integer)) return integer;
    if (parse_double(node.text, &number)) return number;
  }
  return node.text;
}

void collect_paths(const Fields& fields, const std::string& prefix, std::vector<std::string>* out) {
  for (const Field& field : fields.list()) {
    out->push_back(prefix + field.name);
    if (const auto* nested = std::get_if<std::shared_ptr<Fields>>(&field.target)) {
      collect_paths(**nested, prefix + field.name + ".", out);
    }
  }
}

/// A key that has moved from another section: the former name is its path from the root.
bool has_moved(const Field& field) { return field.former.find('.') != std::string::npos; }

void warn_of_former(const std::string& where, const std::string& former, const std::string& name) {
  log_warning("{}: {} is now called {}; the former name will be refused in a later version", where,
              quote(former), quote(name));
}

[[noreturn]] void refuse_both(const std::string& where, const std::string& former,
                              const std::string& name) {
  fail(where, "{} is the former name of {}, which is given too; expected one of them",
       quote(former), quote(name));
}

/// Returns the section of a path of keys; with `make` the missing ones are made, said to be at that
/// place. Null: there is none.
ConfigNode* section_at(ConfigNode* root, const std::vector<std::string>& path, const char* make) {
  ConfigNode* at = root;
  for (const std::string& name : path) {
    if (make != nullptr && at->kind == Kind::null) {
      at->kind = Kind::map;
    }
    if (at->kind != Kind::map) return nullptr;
    const auto key = std::find(at->keys.begin(), at->keys.end(), name);
    const auto place = static_cast<size_t>(key - at->keys.begin());
    if (key == at->keys.end()) {
      if (make == nullptr) return nullptr;
      at->keys.push_back(name);
      at->items.emplace_back().where = make;
    }
    at = &at->items[place];
  }
  if (make != nullptr && at->kind == Kind::null) {
    at->kind = Kind::map;
  }
  return at->kind == Kind::map ? at : nullptr;
}

/// Brings keys that are in a former section to their own.
void move_former_keys(const Fields& fields, const std::vector<std::string>& path,
                      ConfigNode* root) {
  for (const Field& field : fields.list()) {
    if (const auto* nested = std::get_if<std::shared_ptr<Fields>>(&field.target)) {
      std::vector<std::string> deeper = path;
      deeper.push_back(field.name);
      move_former_keys(**nested, deeper, root);
    }
    if (!has_moved(field)) continue;
    std::vector<std::string> former = split(field.former, '.');
    const std::string key = former.back();
    former.pop_back();
    ConfigNode* const from = section_at(root, former, nullptr);
    if (from == nullptr || from->find(key) == nullptr) continue;
    const auto at = std::find(from->keys.begin(), from->keys.end(), key) - from->keys.begin();
    const ConfigNode value = from->items[static_cast<size_t>(at)];
    from->keys.erase(from->keys.begin() + at);
    from->items.erase(from->items.begin() + at);
    const std::string name = join(path, ".") + "." + field.name;
    ConfigNode* const to = section_at(root, path, value.where.c_str());
    if (to == nullptr) continue;  // a section that is no map is refused when it is read
    if (to->find(field.name) != nullptr) {
      refuse_both(value.where, field.former, name);
    }
    warn_of_former(value.where, field.former, name);
    to->keys.push_back(field.name);
    to->items.push_back(value);
  }
}

/// Replaces earlier names of keys (Field::formerly) in a tree, and prints a note for each. Throws
/// Error if a section has a key under both names.
void rename_former_keys(const Fields& fields, const std::string& prefix, ConfigNode* node) {
  if (node->kind != Kind::map) return;
  for (const Field& field : fields.list()) {
    const auto old = std::find(node->keys.begin(), node->keys.end(), field.former);
    if (!field.former.empty() && old != node->keys.end()) {
      const auto at = static_cast<size_t>(old - node->keys.begin());
      const std::string& where = node->items[at].where;
      if (node->find(field.name) != nullptr) {
        refuse_both(where, prefix + field.former, prefix + field.name);
      }
      warn_of_former(where, prefix + field.former, prefix + field.name);
      *old = field.name;
    }
    const auto* nested = std::get_if<std::shared_ptr<Fields>>(&field.target);
    const auto key = std::find(node->keys.begin(), node->keys.end(), field.name);
    if (nested != nullptr && key != node->keys.end()) {
      rename_former_keys(**nested, prefix + field.name + ".",
                         &node->items[static_cast<size_t>(key - node->keys.begin())]);
    }
  }
}

/// Returns the path of the key that was at this path in a former section, or "".
std::string moved_to(const Fields& fields, const std::string& prefix, std::string_view former) {
  for (const Field& field : fields.list()) {
    if (has_moved(field) && field.former == former) return prefix + field.name;
    if (const auto* nested = std::get_if<std::shared_ptr<Fields>>(&field.target)) {
      const std::string found = moved_to(**nested, prefix + field.name + ".", former);
      if (!found.empty()) return found;
    }
  }
  return "";
}

/// Returns an override "a.b=value" with current names for earlier ones in its path.
std::string with_current_names(const Fields& fields, const std::string& assignment) {
  const size_t end = std::min(assignment.find('='), assignment.size());
  const std::string given_path(trim(assignment.substr(0, end)));
  const std::string moved = moved_to(fields, "", given_path);
  std::vector<std::string> names = split(moved.empty() ? given_path : moved, '.');
  const Fields* at = &fields;
  bool renamed = !moved.empty();
  for (std::string& name : names) {
    const std::string given(trim(name));
    const auto& list = at->list();
    const auto found = std::find_if(list.begin(), list.end(), [&](const Field& field) {
      return field.name == given || (!field.former.empty() && field.former == given);
    });
    if (found == list.end()) break;
    renamed = renamed || found->name != given;
    name = found->name == given ? name : found->name;
    const auto* nested = std::get_if<std::shared_ptr<Fields>>(&found->target);
    if (nested == nullptr) break;
    at = nested->get();
  }
  if (!renamed) return assignment;
  const std::string path = join(names, ".");
  log_warning("--set {} is now --set {}; the former name will be refused in a later version",
              assignment.substr(0, end), path);
  return path + assignment.substr(end);
}

}  // namespace

Field& Fields::add(std::string_view name, std::string_view help, FieldTarget target) {
  for (const Field& field : list_) {
    HOCKET_CHECK(field.name != name, "config key '{}' is named twice", name);
  }
  Field field;
  field.name = name;
  field.help = help;
  field.target = std::move(target);
  list_.push_back(std::move(field));
  return list_.back();
}

/// Walks the fields and the tree together; fills the members and the ResolvedConfig.
class ConfigReader {
 public:
  explicit ConfigReader(const Fields& root) { collect_paths(root, "", &all_paths_); }

  ResolvedConfig run(const Fields& fields, const ConfigNode& tree) {
    out_.tree_ = std::make_shared<const Json>(section(fields, &tree, "", 0, tree.where));
    return std::move(out_);
  }

 private:
  static std::string short_origin(const ConfigNode* node) {
    if (node == nullptr) return "default";
    return node->assigned_by.empty() ? node->where : node->assigned_by;
  }

  [[noreturn]] void wrong(const ConfigNode& node, const std::string& path,
                          const std::string& expected) const {
    const char* const kinds[] = {"null", "", "a list", "a section"};
    const std::string got =
        node.kind == Kind::scalar ? quote(node.text) : kinds[place_of(node.kind)];
    fail(node.where, "{} is {}; expected {}", path, got, expected);
  }

  /// Throws Error for a value that is refused with a reason.
  static void check_refused(const Field& field, const ConfigNode* node, const std::string& path) {
    if (node == nullptr || node->kind != Kind::scalar) return;
    if (const auto refused = field.refused.find(node->text); refused != field.refused.end()) {
      fail(node->where, "{} is {}: {}", path, quote(node->text), refused->second);
    }
  }

  /// Returns whether a value asks for nothing.
  static bool is_off(const ConfigNode& node) {
    return node.kind == Kind::null ||
           (node.kind == Kind::scalar && !node.quoted && node.text == "false");
  }

  void check_known(const Fields& fields, const ConfigNode& node, const std::string& prefix) const {
    std::vector<std::string> known;
    for (const Field& field : fields.list()) {
      known.push_back(field.name);
    }
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const std::string& key = node.keys[i];
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      if (const auto refused = fields.refused().find(key); refused != fields.refused().end()) {
        if (is_off(node.items[i])) continue;
        fail(node.items[i].where, "unknown key {}: {}", quote(prefix + key), refused->second);
      }
      std::string close = nearest(key, known);
      close = close.empty() ? in_another_section(key, prefix) : prefix + close;
      fail(node.items[i].where, "unknown key {}; expected {}", quote(prefix + key),
           close.empty() ? "one of " + join(known, ", ") : "'" + close + "'");
    }
  }

  /// Returns the path of a key with this name in another section, or "". A deeper key has another
  /// meaning: train.optimizer is not plan.shard.optimizer.
  std::string in_another_section(const std::string& key, const std::string& prefix) const {
    const std::string section = prefix.substr(0, prefix.find('.') + 1);
    std::string found;
    for (const std::string& path : all_paths_) {
      const size_t name = path.rfind('.') + 1;
      if (path.substr(name) != key) continue;
      const bool is_deeper = path.find('.') + 1 != name;
      if (!is_deeper || path.starts_with(section)) {
        found = path;
      }
    }
    return found;
  }

  /// Returns the text of a section that is given as a scalar.
  static std::string section_text(const Fields& fields, const ConfigNode& node) {
    const bool has_value = !fields.list().empty() && fields.list()[0].name == "value";
    if (!has_value || node.kind != Kind::scalar) return "a section with keys";
    std::vector<std::string> keys = {"value: " + node.text};
    for (size_t i = 1; i < fields.list().size(); ++i) {
      keys.push_back(fields.list()[i].name + ": ...");
    }
    return "{" + join(keys, ", ") + "}";
  }

  Json section(const Fields& fields, const ConfigNode* node, const std::string& prefix, int indent,
               const std::string& where) {
    if (node != nullptr && node->kind != Kind::map && node->kind != Kind::null) {
      const std::string name = prefix.empty() ? "the file" : prefix.substr(0, prefix.size() - 1);
      wrong(*node, name, section_text(fields, *node));
    }
    if (node != nullptr) {
      check_known(fields, *node, prefix);
    }
    Json out = Json::object();
    for (const Field& field : fields.list()) {
      const ConfigNode* value = node == nullptr ? nullptr : node->find(field.name);
      const std::string path = prefix + field.name;
      if (value == nullptr && field.must_be_set) {
        fail(where, "key '{}' is missing; expected {} ({})", path, type_text(field), field.help);
      }
      check_refused(field, value, path);
      out_.origins_[path] = short_origin(value);
      out[field.name] = std::visit(
          [&](const auto& target) { return read(field, target, value, path, indent, where); },
          field.target);
    }
    return out;
  }

  void line(int indent, const std::string& text, const std::string& origin) {
    out_.lines_.push_back({std::string(static_cast<size_t>(indent), ' ') + text, origin});
  }

  Json leaf(const Field& field, const std::string& path, int indent, Json json) {
    const std::string& origin = out_.origins_[path];
    const std::string yaml = value_text(field);
    line(indent, field.name + ": " + yaml, origin);
    out_.entries_.push_back({path, yaml, origin, field.help});
    return json;
  }

  Json read(const Field& field, const std::shared_ptr<Fields>& nested, const ConfigNode* node,
            const std::string& path, int indent, const std::string& where) {
    line(indent, field.name + (nested->list().empty() ? ": {}" : ":"), "");
    return section(*nested, node, path + ".", indent + 2, node == nullptr ? where : node->where);
  }

  Json read(const Field& field, const FieldList& list, const ConfigNode* node,
            const std::string& path, int indent, const std::string& where) {
    if (node != nullptr) {
      if (node->kind != Kind::list && node->kind != Kind::null) {
        wrong(*node, path, type_text(field));
      }
      list.resize(0);  // elements start from their defaults, not from those of the default list
      list.resize(node->items.size());
    }
    if (list.size() == 0) return leaf(field, path, indent, Json::array());
    line(indent, field.name + ":", "");
    Json out = Json::array();
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t first = out_.lines_.size();
      const ConfigNode* item = node == nullptr ? nullptr : &node->items[i];
      out.push_back(section(list.at(i), item, fmt::format("{}.{}.", path, i), indent + 4,
                            item == nullptr ? where : item->where));
      if (out_.lines_.size() == first) {
        line(indent + 4, "{}", "");
      }
      out_.lines_[first].text[static_cast<size_t>(indent) + 2] = '-';
    }
    return out;
  }

  Json read(const Field& field, const NamedValue& named, const ConfigNode* node,
            const std::string& path, int indent, const std::string&) {
    if (node != nullptr) {
      std::string text;
      if (!named.optional || node->kind != Kind::null) {
        assign(field, *node, path, &text);
      }
      named.set(text);
    }
    const std::string text = named.get();
    return leaf(field, path, indent, text.empty() ? Json(nullptr) : Json(text));
  }

  template <class T>
  Json read(const Field& field, T* target, const ConfigNode* node, const std::string& path,
            int indent, const std::string&) {
    using Value = typename TypeOf<T>::type;
    if (node != nullptr) {
      if constexpr (TypeOf<T>::optional) {
        if (node->kind == Kind::null) {
          *target = std::nullopt;
        } else {
          Value value{};
          assign(field, *node, path, &value);
          *target = std::move(value);
        }
      } else {
        assign(field, *node, path, target);
      }
    }
    if constexpr (TypeOf<T>::optional) {
      if (!target->has_value()) return leaf(field, path, indent, nullptr);
      return leaf(field, path, indent, **target);
    } else {
      return leaf(field, path, indent, *target);
    }
  }

  static const std::string& scalar(const Field& field, const ConfigNode& node,
                                   const std::string& path, const ConfigReader& self) {
    if (node.kind != Kind::scalar) {
      self.wrong(node, path, type_text(field));
    }
    return node.text;
  }

  void assign(const Field& field, const ConfigNode& node, const std::string& path, bool* out) {
    const std::string& text = scalar(field, node, path, *this);
    const bool is_one = text == "true" || text == "false";
    if (node.quoted || !is_one) {
      wrong(node, path, is_one ? "true or false, without quotes" : "true or false");
    }
    *out = text == "true";
  }

  double number(const Field& field, const ConfigNode& node, const std::string& path,
                const char* plain) {
    const std::string& text = scalar(field, node, path, *this);
    double value = 0;
    const bool has_unit = field.unit_of != Unit::none;
    const std::string expected = has_unit ? unit_examples(field.unit_of) : plain;
    if (!parse_quantity(text, field.unit_of, &value)) {
      wrong(node, path, expected);
    }
    // A quantity is a string to YAML with and without quotes; a number is one only without.
    if (node.quoted && !has_unit) {
      wrong(node, path, expected + ", without quotes");
    }
    if ((field.least && value < *field.least) || (field.most && value > *field.most)) {
      wrong(node, path, range_text(field));
    }
    return value;
  }

  void assign(const Field& field, const ConfigNode& node, const std::string& path, double* out) {
    *out = number(field, node, path, "a number");
  }

  void assign(const Field& field, const ConfigNode& node, const std::string& path, int64_t* out) {
    const double value = number(field, node, path, "an integer");
    int64_t whole = 0;
    if (parse_int(trim(node.text), &whole)) {
      *out = whole;
    } else if (field.unit_of != Unit::none && std::fabs(value) < 0x1p62) {
      *out = std::llround(value);
    } else {
      wrong(node, path, integer_text(node.text));
    }
  }

  void assign(const Field& field, const ConfigNode& node, const std::string& path,
              std::string* out) {
    const std::string& text = scalar(field, node, path, *this);
    const std::vector<std::string>& allowed = field.allowed;
    if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
      const std::string close = nearest(text, allowed);
      wrong(node, path, type_text(field) + (close.empty() ? "" : "; try '" + close + "'"));
    }
    *out = text;
  }

  // Assigns a list; a single value stands for a list of one.
  template <class T>
  void assign(const Field& field, const ConfigNode& node, const std::string& path,
              std::vector<T>* out) {
    std::vector<T> values;
    if (node.kind == Kind::list) {
      for (size_t i = 0; i < node.items.size(); ++i) {
        values.emplace_back();
        assign(field, node.items[i], fmt::format("{}[{}]", path, i), &values.back());
      }
    } else if (node.kind == Kind::scalar) {
      values.emplace_back();
      assign(field, node, path, &values.back());
    } else {
      wrong(node, path, type_text(field));
    }
    *out = std::move(values);
  }

  void assign(const Field& field, const ConfigNode& node, const std::string& path,
              std::map<std::string, std::string>* out) {
    if (node.kind != Kind::map) {
      wrong(node, path, type_text(field));
    }
    std::map<std::string, std::string> values;
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const std::string& key = node.keys[i];
      values[key] = scalar(field, node.items[i], path + "." + key, *this);
    }
    *out = std::move(values);
  }

  void assign(const Field&, const ConfigNode& node, const std::string&, Json* out) {
    *out = raw_json(node);
  }

  std::vector<std::string> all_paths_;
  ResolvedConfig out_;
};

std::string ResolvedConfig::origin(const std::string& path) const {
  const auto it = origins_.find(path);
  HOCKET_CHECK(it != origins_.end(), "no config key '{}'", path);
  return it->second;
}

Json ResolvedConfig::to_json() const { return *tree_; }

std::string ResolvedConfig::to_json_text(int indent) const {
  return tree_->dump(indent > 0 ? indent : -1);
}

std::string read_config_text(const std::string& path) { return read_file(path, 4 << 20); }

ResolvedConfig read_config(const Fields& fields, std::string_view text, const std::string& name,
                           const std::vector<std::string>& overrides, const Filled& filled) {
  if (!is_utf8(text)) fail(name, "not valid UTF-8; expected YAML text");
  for (const std::string& assignment : overrides) {
    if (!is_utf8(assignment)) fail("--set " + quote(assignment), "not valid UTF-8");
  }
  ConfigNode tree = parse_config_tree(text, name);
  if (tree.kind != Kind::map) fail(name, "expected keys with values, such as 'train:'");
  rename_former_keys(fields, "", &tree);
  move_former_keys(fields, {}, &tree);
  for (const std::string& assignment : overrides) {
    apply_override(&tree, with_current_names(fields, assignment), "--set");
  }
  for (const std::string& assignment : filled.assignments) {
    apply_override(&tree, assignment, filled.by);
  }
  return ConfigReader(fields).run(fields, tree);
}

}  // namespace hocket

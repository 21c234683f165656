// SPDX-License-Identifier: Apache-2.0
// Settings of another trainer in a tree: YAML, JSON or TOML, read by the path of a key. Every
// getter throws Error with the line, where the format has lines, and the path.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config_tree.h"
#include "interop/known_keys.h"

namespace hocket::interop {

/// Trees with the kinds and lines of ConfigNode. Throw Error for a text that does not parse.
ConfigNode tree_of_toml(const std::string& text, const std::string& name);
ConfigNode tree_of_json(const std::string& text, const std::string& name);

/// Returns a value in one line: "a", "[1, 2]", "{b: 3}".
std::string text_of(const ConfigNode& node);

class Settings {
 public:
  /// Returns the names of a key in all releases, the present one first.
  using Names = std::function<std::vector<std::string>(const std::string& path)>;

  /// `tool` and `name` of the file are for errors. Throws Error for a key that `known` has not.
  Settings(ConfigNode root, std::string name, std::string tool, const KnownKeys& known,
           Names names = nullptr);

  const std::string& tool() const { return tool_; }
  /// Returns whether a key has a value other than null.
  bool has(const std::string& path) { return node(path) != nullptr; }
  /// Returns the value of a key; null: it is absent, or null. Throws Error if two names of it say
  /// two things.
  const ConfigNode* node(const std::string& path);
  /// The name under which the file has a key; the present one if it has not.
  std::string name_of(const std::string& path) const;

  int64_t integer(const std::string& path, int64_t otherwise);
  int64_t at_least(int64_t least, const std::string& path, int64_t otherwise);
  double number(const std::string& path, double otherwise);
  std::string text(const std::string& path, const std::string& otherwise);
  bool truth(const std::string& path, bool otherwise);
  std::vector<std::string> texts(const std::string& path);
  /// Returns one of `values`. Throws Error for any other.
  std::string one_of(const std::string& path, const std::string& otherwise,
                     const std::vector<std::string>& values);

  /// Marks all keys below a path as read.
  void use_all(const std::string& path) { used_.push_back(path); }
  void leave(const std::string& path, const std::string& why) { reasons_[name_of(path)] = why; }
  /// Throws the Error that `path` has its value, where `expected` was expected.
  [[noreturn]] void refuse(const std::string& path, const std::string& expected);
  /// Throws Error for a setting without an equal here, unless --set or a search gives `key`.
  void need_key(const std::string& path, const std::string& key, const std::string& why,
                const Beside& beside);
  /// Returns lines for all keys that no reader used. Throws Error if one would make another model,
  /// plan or training.
  KeyReport unread(const Beside& beside) const;

 private:
  void list(const ConfigNode& node, const std::string& path);
  void refuse_unknown() const;
  const ConfigNode* at(const std::string& path) const;
  bool is_used(const std::string& path) const;

  ConfigNode root_;
  std::string name_, tool_;
  const KnownKeys& known_;
  Names names_;
  std::vector<std::pair<std::string, const ConfigNode*>> leaves_;
  std::set<std::string> asked_;
  std::vector<std::string> used_;
  std::map<std::string, std::string> reasons_;
};

/// "line 3: ", or nothing if a node has no line.
std::string line_of(const ConfigNode& node);

}  // namespace hocket::interop

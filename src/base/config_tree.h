// SPDX-License-Identifier: Apache-2.0
// The YAML of a configuration as a plain tree that remembers the line of everything: what config.cc
// reads from, and the only place (config_tree.cc) that sees yaml-cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hocket {

struct ConfigNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;         ///< of a scalar
  bool quoted = false;      ///< a scalar in quotes, or !!str: a string, whatever it looks like
  std::string where;        ///< "run.yaml:12" or "--set a.b=c"
  std::string assigned_by;  ///< "" or whose assignment it is: "--set"
  std::vector<std::string> keys;  ///< of a map, in the file's order; values in `items`
  std::vector<ConfigNode> items;  ///< of a list or map

  const ConfigNode* find(std::string_view key) const;
};

/// Error: not YAML, several documents, a key twice in one map, a key that is no scalar, more than
/// 100,000 nodes (aliases count as often as they are used) or 64 levels. An empty text is an empty
/// map.
ConfigNode parse_config_tree(std::string_view text, const std::string& name);

/// Applies one override "a.b=value", which `by` has made; makes the maps on the way. A value that
/// starts with `[`, `{` or a quote is read as YAML, any other is a plain scalar. Lists take an
/// index: "data.0.weight=2". Error: no key, a path through a value, an index beyond the list,
/// deeper than 64 levels.
void apply_override(ConfigNode* root, const std::string& assignment, const std::string& by);

}  // namespace hocket

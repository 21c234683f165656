// SPDX-License-Identifier: Apache-2.0
// The YAML of a configuration as a plain tree with line numbers, the input of config.cc. Only
// config_tree.cc sees yaml-cpp.
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
  std::string assigned_by;  ///< "", or the origin of an assignment: "--set"
  std::vector<std::string> keys;  ///< of a map, in the file's order; values in `items`
  std::vector<ConfigNode> items;  ///< of a list or map

  const ConfigNode* find(std::string_view key) const;
};

/// Parses a text; an empty one gives an empty map. Throws Error for invalid YAML, several
/// documents, a duplicate key, a non-scalar key, more than 100,000 nodes (aliases count per use) or
/// 64 levels.
ConfigNode parse_config_tree(std::string_view text, const std::string& name);

/// Applies one override "a.b=value", which `by` has made; makes the maps on the way. A value that
/// starts with `[`, `{` or a quote is read as YAML, any other is a plain scalar. Lists take an
/// index: "data.0.weight=2". Throws Error for no key, a path through a value, an index beyond the
/// list, and more than 64 levels.
void apply_override(ConfigNode* root, const std::string& assignment, const std::string& by);

}  // namespace hocket

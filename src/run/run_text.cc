// SPDX-License-Identifier: Apache-2.0
#include "run/run_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"

namespace hocket::engine {

namespace {

/// Key of a section, or index of a list, with its value or its branches.
struct Branch {
  std::string name, value;
  std::vector<Branch> inside;

  Branch& at(const std::string& key) {
    for (Branch& branch : inside) {
      if (branch.name == key) return branch;
    }
    inside.push_back({key, "", {}});
    return inside.back();
  }
};

void write(const Branch& branch, const std::string& indent, std::string* text) {
  int64_t index = 0;
  const bool is_list = !branch.inside.empty() && parse_int(branch.inside[0].name, &index);
  for (const Branch& child : branch.inside) {
    if (is_list) {
      std::string item;
      write(child, indent + "  ", &item);
      *text += indent + "- " + item.substr(std::min(item.size(), indent.size() + 2));
    } else if (child.inside.empty()) {
      *text += fmt::format("{}{}: {}\n", indent, child.name, child.value);
    } else {
      *text += fmt::format("{}{}:\n", indent, child.name);
      write(child, indent + "  ", text);
    }
  }
}

}  // namespace

std::string run_yaml(const Run& run, const std::string& comment) {
  std::string text;
  for (const std::string& line : split(comment, '\n')) {
    text += fmt::format("# {}\n", line);
  }
  Branch root;
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (entry.origin == "default") continue;
    Branch* branch = &root;
    for (const std::string& part : split(entry.path, '.')) {
      branch = &branch->at(part);
    }
    branch->value = entry.value;
  }
  write(root, "", &text);
  return text;
}

std::vector<std::string> assignments_of(const Run& run) {
  std::vector<std::string> list;
  std::set<std::string> lists;  // lists of sections that are among them
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (entry.origin == "default") continue;
    std::string path;
    int64_t index = 0;
    for (const std::string& part : split(entry.path, '.')) {
      if (parse_int(part, &index)) break;
      path += (path.empty() ? "" : ".") + part;
    }
    if (path == entry.path) {
      list.push_back(fmt::format("{}={}", path, entry.value));
    } else if (lists.insert(path).second) {
      nlohmann::json value = run.resolved.to_json();
      for (const std::string& part : split(path, '.')) {
        value = nlohmann::json(value.at(part));
      }
      list.push_back(fmt::format("{}={}", path, value.dump()));
    }
  }
  return list;
}

}  // namespace hocket::engine

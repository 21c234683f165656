// SPDX-License-Identifier: Apache-2.0
#include "base/config_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace hocket {
namespace {

constexpr int kMaxNodes = 100'000;
constexpr int kMaxDepth = 64;

std::string at_line(const std::string& name, const YAML::Mark& mark, const std::string& otherwise) {
  return mark.is_null() ? otherwise : fmt::format("{}:{}", name, mark.line + 1);
}

/// Converts to our own tree: every value has its line, and a duplicate key is an error, which
/// yaml-cpp accepts. `budget` is the number of nodes left: aliases are copied, and a few lines of
/// them can expand to billions.
ConfigNode convert(const YAML::Node& node, const std::string& name, const std::string& where,
                   int depth, int* budget) {
  if (--*budget < 0 || depth > kMaxDepth) {
    fail(where,
         "too large; expected at most {} values, {} levels deep (every use of an alias "
         "counts)",
         kMaxNodes, kMaxDepth);
  }
  ConfigNode out;
  out.where = where;
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      break;
    case YAML::NodeType::Scalar:
      out.kind = ConfigNode::Kind::scalar;
      out.text = node.Scalar();
      out.quoted = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
      if (!out.quoted && (out.text.empty() || out.text == "~" || out.text == "null")) {
        out.kind = ConfigNode::Kind::null;
      }
      break;
    case YAML::NodeType::Sequence:
      out.kind = ConfigNode::Kind::list;
      for (const YAML::Node& item : node) {
        out.items.push_back(
            convert(item, name, at_line(name, item.Mark(), where), depth + 1, budget));
      }
      break;
    case YAML::NodeType::Map:
      out.kind = ConfigNode::Kind::map;
      for (const auto& entry : node) {
        const std::string line = at_line(name, entry.first.Mark(), where);
        if (!entry.first.IsScalar()) fail(line, "a key is not a plain name");
        const std::string& key = entry.first.Scalar();
        if (out.find(key) != nullptr) {
          fail(line, "key '{}' is given twice; the first is at {}", key, out.find(key)->where);
        }
        out.keys.push_back(key);
        out.items.push_back(convert(entry.second, name, line, depth + 1, budget));
      }
      break;
  }
  return out;
}

/// Advice if a tab indents the line, where the parser speaks of map values.
std::string tab_advice(const std::string& yaml, const YAML::Mark& mark) {
  if (mark.is_null()) return "";
  const std::vector<std::string> lines = split(yaml, '\n');
  const auto at = static_cast<size_t>(std::max(mark.line, 0));
  for (size_t i = at > 0 ? at - 1 : 0; i <= at && i < lines.size(); ++i) {
    const size_t tab = lines[i].find('\t');
    if (tab != std::string::npos && tab <= lines[i].find_first_not_of(" \t")) {
      return "; a line is indented by a tab; expected blanks";
    }
  }
  return "";
}

/// Records the start of the last document.
struct DocumentStarts final : YAML::EventHandler {
  YAML::Mark last;
  void OnDocumentStart(const YAML::Mark& mark) override { last = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// Throws Error if anything follows the first document. YAML::LoadAll would never end where the
/// parser makes one empty document after the other without reading on, as of "[1],2]".
void expect_one_document(const std::string& text, const std::string& name) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  parser.HandleNextDocument(starts);
  if (parser.HandleNextDocument(starts)) {
    fail(at_line(name, starts.last, name), "more text after the end; expected one YAML document");
  }
}

/// Returns the tree of `text`, with its root at level `depth` of a larger tree.
ConfigNode parse_tree(std::string_view text, const std::string& name, int depth) {
  const std::string yaml(text);
  try {
    expect_one_document(yaml, name);
    int budget = kMaxNodes;
    ConfigNode root = convert(YAML::Load(yaml), name, name, depth, &budget);
    if (root.kind == ConfigNode::Kind::null) {
      root.kind = ConfigNode::Kind::map;
    }
    root.where = name;
    return root;
  } catch (const YAML::Exception& exception) {
    fail(at_line(name, exception.mark, name), "not valid YAML: {}{}", exception.msg,
         tab_advice(yaml, exception.mark));
  }
}

void set_origin(ConfigNode* node, const std::string& where, const std::string& by) {
  node->where = where;
  node->assigned_by = by;
  for (ConfigNode& item : node->items) {
    set_origin(&item, where, by);
  }
}

}  // namespace

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

ConfigNode parse_config_tree(std::string_view text, const std::string& name) {
  return parse_tree(text, name, 0);
}

void apply_override(ConfigNode* root, const std::string& assignment, const std::string& by) {
  constexpr size_t kShown = 200;
  const std::string where =
      by + " " + (assignment.size() <= kShown ? assignment : quote(assignment, kShown));
  const size_t equals = assignment.find('=');
  const std::string path(trim(std::string_view(assignment).substr(0, equals)));
  if (equals == std::string::npos || path.empty()) {
    fail(where, "expected key=value, such as train.steps=100");
  }
  const std::vector<std::string> names = split(path, '.');
  const auto depth = static_cast<int>(std::min<size_t>(names.size(), kMaxDepth + 1));
  if (depth > kMaxDepth) {
    fail(where, "{} names in the path; expected at most {}", names.size(), kMaxDepth);
  }
  ConfigNode value;
  const std::string text(trim(std::string_view(assignment).substr(equals + 1)));
  if (!text.empty() && std::string_view("[{'\"").find(text[0]) != std::string_view::npos) {
    value = parse_tree(text, where, depth);
  } else if (text != "null" && text != "~") {
    value.kind = ConfigNode::Kind::scalar;
    value.text = text;
    value.quoted = text.empty();
  }
  set_origin(&value, where, by);

  ConfigNode* node = root;
  std::string walked;
  for (const std::string& part : names) {
    if (part.empty()) fail(where, "empty name in the path {}", quote(path));
    if (node->kind == ConfigNode::Kind::null) {
      node->kind = ConfigNode::Kind::map;
      node->where = where;
    }
    if (node->kind == ConfigNode::Kind::list) {
      int64_t index = 0;
      const auto count = static_cast<int64_t>(node->items.size());
      if (!parse_int(part, &index) || index < 0 || index >= count) {
        fail(where, "{} is a list of {}; got {}; expected an index below that", walked, count,
             quote(part));
      }
      node = &node->items[index];
    } else if (node->kind == ConfigNode::Kind::map) {
      if (node->find(part) == nullptr) {
        node->keys.push_back(part);
        node->items.emplace_back();
      }
      node = const_cast<ConfigNode*>(node->find(part));
    } else {
      fail(where, "{} is a value ({}) and has no keys", walked, node->where);
    }
    walked += walked.empty() ? part : "." + part;
  }
  *node = std::move(value);
}

}  // namespace hocket

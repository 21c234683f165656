// SPDX-License-Identifier: Apache-2.0
#include "interop/known_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace hocket::interop {

namespace {

std::vector<std::string> words_of(const char* text) {
  std::vector<std::string> words;
  for (const std::string& line : split(text, ' ')) {
    if (!line.empty()) {
      words.push_back(line);
    }
  }
  return words;
}

bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& parts) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == "**") return true;
    if (i >= parts.size() || (pattern[i] != "*" && pattern[i] != parts[i])) return false;
  }
  return pattern.size() == parts.size();
}

std::string last_part(std::string_view key) {
  const size_t dot = key.rfind('.');
  return std::string(dot == key.npos ? key : key.substr(dot + 1));
}
std::string section_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return std::string(dot == key.npos ? "" : key.substr(0, dot));
}

}  // namespace

bool KnownKeys::Key::is_neutral(std::string_view value) const {
  if (neutral.empty()) return false;
  for (const char* off : {"", "null", "None", "false", "False", "0", "0.0", "[]", "{}"}) {
    if (value == off) return true;
  }
  return std::find(neutral.begin(), neutral.end(), value) != neutral.end();
}

KnownKeys::KnownKeys(std::span<const KeyGroup> groups) {
  for (const KeyGroup& group : groups) {
    std::string prefix;
    for (const std::string& word : words_of(group.names)) {
      if (word.ends_with(':')) {
        prefix = word.size() > 1 ? word.substr(0, word.size() - 1) + "." : "";
      } else {
        add(prefix + word, group, group.effect == KeyEffect::read);
      }
    }
  }
}

/// Keeps the first effect of a name, unless `replaces`.
void KnownKeys::add(const std::string& name, const KeyGroup& group, bool replaces) {
  const size_t equal = name.find('=');
  Key key = {group.effect, group.why, {}};
  if (equal != name.npos) {
    key.neutral = split(name.substr(equal + 1), '|');
  }
  const std::string path = name.substr(0, equal);
  if (path.find('*') != path.npos) {
    patterns_.push_back({split(path, '.'), std::move(key)});
  } else if (replaces) {
    keys_.insert_or_assign(path, std::move(key));
  } else {
    keys_.emplace(path, std::move(key));
  }
}

const KnownKeys::Key* KnownKeys::find(std::string_view key) const {
  const auto found = keys_.find(key);
  if (found != keys_.end()) return &found->second;
  const std::vector<std::string> parts = split(key, '.');
  for (const auto& [pattern, of_pattern] : patterns_) {
    if (fits(pattern, parts)) return &of_pattern;
  }
  return nullptr;
}

bool KnownKeys::has_section(std::string_view section) const {
  const std::string prefix = std::string(section) + ".";
  const auto next = keys_.lower_bound(prefix);
  if (next != keys_.end() && next->first.starts_with(prefix)) return true;
  const std::vector<std::string> parts = split(section, '.');
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const auto& pattern) {
    const std::vector<std::string>& names = pattern.first;
    if (names.size() <= parts.size()) return false;
    return fits({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(parts.size())}, parts);
  });
}

std::string KnownKeys::nearest(std::string_view key) const {
  // Indices of lists are stars in names.
  std::vector<std::string> parts = split(key, '.');
  const std::vector<std::string> given = parts;
  for (std::string& part : parts) {
    int64_t index = 0;
    part = parse_int(part, &index) ? "*" : part;
  }
  const std::string path = join(parts, "."), section = section_of(path), name = last_part(path);
  std::vector<std::string> beside, all;
  std::string elsewhere;
  int least = 0;
  for (const std::string& known : names()) {
    all.push_back(known);
    if (section_of(known) == section) {
      beside.push_back(last_part(known));
    } else if (last_part(known) == name) {
      const int distance = edit_distance(section, section_of(known));
      if (elsewhere.empty() || distance < least) {
        elsewhere = known;
        least = distance;
      }
    }
  }
  const std::string here = hocket::nearest(name, beside);
  const std::string found = !here.empty()       ? (section.empty() ? here : section + "." + here)
                            : elsewhere.empty() ? hocket::nearest(path, all)
                                                : elsewhere;
  parts = split(found, '.');
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "*") {
      parts[i] = i < given.size() ? given[i] : "0";
    }
  }
  return join(parts, ".");
}

std::vector<std::string> KnownKeys::names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : keys_) {
    names.push_back(name);
  }
  for (const auto& [pattern, unused] : patterns_) {
    std::vector<std::string> parts = pattern;
    if (parts.back() == "**") {
      parts.pop_back();
    }
    names.push_back(join(parts, "."));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string shown_value(std::string_view key, std::string_view value) {
  static constexpr std::array<std::string_view, 9> kSecrets = {
      "api_key",  "api-key", "auth_token",  "hub_token",  "hub-token",
      "password", "secret",  "webhook_url", "webhook-url"};
  const bool is_secret =
      std::ranges::any_of(kSecrets, [&](std::string_view end) { return key.ends_with(end); });
  return is_secret && value != "true" && value != "false" ? "(not shown)" : std::string(value);
}

std::string try_nearest(const KnownKeys& known, std::string_view key, std::string_view prefix) {
  const std::string name = known.nearest(key);
  return name.empty() ? "" : fmt::format("; try {}{}", prefix, name);
}

bool Beside::has_model() const {
  return std::any_of(keys.begin(), keys.end(), [](const std::string& key) {
    return key == "model.path" || key.starts_with("model.config");
  });
}

void report_unread(const KnownKeys::Key& key, std::string_view value, const std::string& text,
                   const std::string& where, const Beside& beside, KeyReport* report) {
  const std::string why = key.why;
  const bool of_model = key.effect == KeyEffect::model, of_plan = key.effect == KeyEffect::plan;
  const bool is_replaced = (of_model && beside.has_model()) || (of_plan && !beside.keeps_plan);
  if (is_replaced || key.is_neutral(value) || key.effect == KeyEffect::read) {
    report->ignored.push_back(text);
  } else if (of_model || of_plan) {
    fail(where, "{} would make another {}: {}; expected a file without it{}", text,
         of_model ? "model" : "plan", why,
         of_model ? "; try --set model.path=MODEL, to which the file's plan then belongs"
                  : "; try --cluster, which finds a plan of its own");
  } else if (key.effect == KeyEffect::training) {
    fail(where, "{} would make another training: {}; expected a file without it", text, why);
  } else if (key.effect == KeyEffect::differs) {
    report->notes.push_back(fmt::format("{}: {}", text, why));
  } else {
    report->ignored.push_back(why.empty() ? text : fmt::format("{}: {}", text, why));
  }
}

}  // namespace hocket::interop

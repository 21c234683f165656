// SPDX-License-Identifier: Apache-2.0
// Targets and patterns of an adapter, matched with names of modules. Internal to src/models.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "models/lora.h"
#include "models/lora_modules.h"
#include "models/name_pattern.h"

namespace hocket::models {

inline constexpr const char* kAllLinear = "all-linear";

/// Ranks or alphas by pattern. PEFT takes the first that matches; here several must agree.
template <typename Number>
class PatternValues {
 public:
  PatternValues(const std::vector<std::pair<std::string, Number>>& list, const char* key,
                const std::string& where)
      : key_(key), where_(where) {
    for (const auto& [pattern, value] : list) {
      if (!(value > 0)) {
        fail(where, "{} has {} for {}; expected a number above 0", key, value, quote(pattern));
      }
      list_.push_back(
          {pattern, NamePattern("(.*\\.)?(" + pattern + ")", key, where), value, false});
    }
  }
  Number of(const std::string& module, Number otherwise) {
    const Entry* first = nullptr;
    for (Entry& entry : list_) {
      if (!entry.expression.matches(module)) continue;
      entry.used = true;
      if (first == nullptr) {
        first = &entry;
      } else if (first->value != entry.value) {
        fail(where_, "{}: {} and {} both match {} and differ; expected one for each module", key_,
             quote(first->pattern), quote(entry.pattern), module);
      }
    }
    return first != nullptr ? first->value : otherwise;
  }
  void expect_used() const {
    for (const Entry& entry : list_) {
      if (!entry.used) {
        fail(where_, "{}: {} matches no module with an adapter", key_, quote(entry.pattern));
      }
    }
  }

 private:
  struct Entry {
    std::string pattern;
    NamePattern expression;
    Number value;
    bool used;
  };
  std::vector<Entry> list_;
  const char* key_;
  const std::string& where_;
};

/// Matches names of modules with the targets, and remembers which of these matched.
class TargetMatcher {
 public:
  TargetMatcher(const Lora& lora, const std::string& where);
  /// `linear`: a linear layer of a block.
  bool matches(const std::string& module, bool linear);
  bool matches_parameter(const std::string& name);
  /// Throws Error for a target that nothing matched.
  void expect_used(const ModelModules& modules) const;

 private:
  std::string in_layers() const;
  bool fits_one(const std::string& name, const std::vector<std::string>& endings);

  const Lora& lora_;
  const std::string& where_;
  std::optional<NamePattern> pattern_;
  std::set<std::string> used_;
  bool any_ = false;
};

}  // namespace hocket::models

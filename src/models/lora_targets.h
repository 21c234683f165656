// SPDX-License-Identifier: Apache-2.0
// Targets and patterns of an adapter, matched with names of modules. Internal to src/models.
#pragma once

#include <fmt/format.h>

#include <cstdint>
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

/// Name of a field of Lora in errors.
std::string key_of(LoraKeys keys, const std::string& field);

/// Ranks or alphas by pattern. PEFT takes the first that matches; here several must agree.
template <typename Number>
class PatternValues {
 public:
  PatternValues(const std::vector<std::pair<std::string, Number>>& list, std::string key,
                const std::string& where)
      : key_(std::move(key)), where_(where) {
    for (const auto& [pattern, value] : list) {
      if (!(value > 0)) {
        fail(where, "{} has {} for {}; expected a number above 0", key_, value, quote(pattern));
      }
      list_.push_back(
          {pattern, NamePattern("(.*\\.)?(" + pattern + ")", key_, where), value, false});
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
  const std::string key_;
  const std::string& where_;
};

/// Matches names of modules with the targets, and remembers which of these matched.
class TargetMatcher {
 public:
  TargetMatcher(const Lora& lora, const std::string& where, LoraKeys keys);
  /// Returns whether a module is a target. `layer`: its layer; kNone: it is no linear layer of a
  /// block. As in PEFT, a whole name in the list is a target in any layer.
  bool matches(const std::string& module, int32_t layer);
  bool matches_parameter(const std::string& name);
  /// Throws Error for a target that nothing matched.
  void expect_used(const ModelModules& modules) const;

 private:
  std::string in_layers() const;
  bool fits_one(const std::string& name, const std::vector<std::string>& endings, bool is_here);
  [[noreturn]] void fail_unused(const std::string& ending, const ModelModules& modules,
                                bool is_parameter) const;
  [[noreturn]] void fail_unused_pattern(const ModelModules& modules) const;

  const Lora& lora_;
  const std::string& where_;
  const LoraKeys keys_;
  std::optional<NamePattern> pattern_;
  std::set<const std::string*> used_;  ///< entries of both lists, which may be equal
  bool any_ = false;
};

}  // namespace hocket::models

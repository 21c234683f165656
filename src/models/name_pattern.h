// SPDX-License-Identifier: Apache-2.0
// Regular expressions for names of modules.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace hocket::models {

/// A regular expression that matches whole names, as Python's re.fullmatch; the dialect is PCRE2's.
class NamePattern {
 public:
  /// Throws Error, in the name of `where`, if the pattern does not compile. `key` names the
  /// pattern.
  NamePattern(const std::string& pattern, const std::string& key, const std::string& where);
  /// Returns whether the pattern matches a name. Throws Error if the matcher gives up.
  bool matches(std::string_view name) const;

 private:
  std::string pattern_;
  std::shared_ptr<void> code_;
};

}  // namespace hocket::models

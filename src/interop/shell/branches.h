// SPDX-License-Identifier: Apache-2.0
// Branches of a shell script: `if` and `case`, whose conditions are tests of texts and numbers.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/shell/words.h"

namespace hocket::interop {

/// "line 3: if is not evaluated: ..".
std::string unread_note(int line, std::string_view word);

/// Takes the branch of an `if` or a `case` whose condition is known; where it is not, all of them.
class ShellBranches {
 public:
  /// `notes` gets a line for each condition that is not known. Requires: both outlive it.
  ShellBranches(ShellWords& words, std::vector<std::string>& notes)
      : words_(words), notes_(notes) {}

  /// Returns whether the place in the script is in branches that are taken.
  bool is_read() const { return are_read(branches_.size()); }
  /// Reads a keyword of the shell, or the pattern of a case; false: none stands here.
  bool read_keyword();

 private:
  struct Branch {
    bool is_case = false;
    bool is_known = true;  ///< false: some condition was not
    bool is_taken = false;
    bool is_read = true;  ///< this part of it
    std::string word;     ///< of a case
    bool is_word_known = true;
  };

  /// Returns whether the outermost `count` branches are taken.
  bool are_read(size_t count) const {
    return std::all_of(branches_.begin(), branches_.begin() + static_cast<std::ptrdiff_t>(count),
                       [](const Branch& branch) { return branch.is_read; });
  }
  bool take_keyword(std::string_view word);
  void enter(int line, const char* word);
  std::string rest_of_condition();
  std::optional<bool> truth_of(std::string_view condition);
  std::optional<bool> truth_of_numbers(std::string_view inside);
  std::optional<bool> truth_of_test(std::string_view condition);
  void read_case(int line);
  bool read_pattern_of_case();

  ShellWords& words_;
  std::vector<std::string>& notes_;
  std::vector<Branch> branches_;
};

}  // namespace hocket::interop

// SPDX-License-Identifier: Apache-2.0
// The arguments of Megatron-LM in a shell script.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/known_keys.h"
#include "interop/shell/shell.h"

namespace hocket::interop {

/// Arguments of a script by flag, each with its words, and the arguments of the launcher.
class MegatronArguments {
 public:
  /// `name`: the file's, in errors. Throws Error if it has no arguments, two commands with some, or
  /// a flag that no release of Megatron-LM has.
  MegatronArguments(const std::string& text, const std::string& name);

  bool has(const std::string& flag) { return find(flag) != nullptr; }
  /// The one word of a flag; empty if it is not there.
  std::string text(const std::string& flag);
  /// Returns all words of a flag; empty if it is absent.
  std::vector<std::string> words(const std::string& flag);
  int64_t integer(const std::string& flag, int64_t otherwise);
  double number(const std::string& flag, double otherwise);
  int64_t at_least(int64_t least, const std::string& flag, int64_t otherwise);
  /// Returns a number of the launcher, from a flag with dashes or underscores. Returns 0, with a
  /// note, if it is known only where the script runs.
  int64_t launcher(const std::string& flag, int64_t otherwise);
  /// Says why a flag is left aside, if it is there.
  void leave(const std::string& flag, const std::string& why) { reasons_[flag] = why; }
  /// Returns lines for all flags that no reader used, and notes of the script. Throws Error for a
  /// flag that would make another model or plan.
  KeyReport unread(const Beside& beside) const;

 private:
  using Flags = std::vector<std::pair<std::string, std::vector<std::string>>>;
  static void collect(const std::vector<ShellWord>& words, Flags* flags);
  static const KnownKeys::Key* find_known(std::string_view name);
  /// Reads the arguments of a script's trainer and of its launcher. Throws Error if it starts two.
  void find_command(const ShellScript& script);
  /// Throws Error if a function of the script is called with arguments of Megatron-LM.
  void refuse_calls(const ShellScript& script) const;
  void refuse_unknown() const;
  /// Throws Error if torchrun stands in front of a program, with a flag that it has not.
  void expect_torchrun(const std::vector<ShellWord>& words) const;
  const std::vector<std::string>* find(const std::string& flag);

  std::string name_;
  Flags flags_, launcher_;
  std::set<std::string> asked_;
  std::map<std::string, std::string> reasons_;
  std::vector<std::string> notes_;
};

/// A list of numbers as Python reads it: "([0]*3+[1]*58)". False: it is none.
bool read_pattern(const std::string& text, std::vector<int64_t>* list);
/// "Et*3|(t|)*6tL": letters of E, t, m and L with a number of times, stages between bars, groups in
/// parentheses, written out. False: it is none.
bool read_pipeline_layout(const std::string& text, std::string* flat);

}  // namespace hocket::interop

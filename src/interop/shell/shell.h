// SPDX-License-Identifier: Apache-2.0
// Words of a shell script, without running anything: assignments, arrays, quotes, comments and the
// expansions $NAME, ${NAME}, ${NAME:-default} (and -, := and =), ${NAME[@]} and $((a * b)). Read as
// if called without arguments: $@ and $* give no words. Other expansions ($1, output of commands)
// stay as written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::interop {

struct ShellWord {
  std::string text;
  int line = 0;
};

struct ShellScript {
  std::vector<std::vector<ShellWord>> commands;
  /// Words of all assigned arrays, and of texts of several words, in order: arguments of a file
  /// without a command.
  std::vector<ShellWord> assigned;
  /// "line 3: if is not followed": both branches are read.
  std::vector<std::string> notes;
};

/// Reads a script; `name` is the file's, in errors. Throws Error for quotes or parentheses that do
/// not end.
ShellScript read_shell(std::string_view text, const std::string& name);

}  // namespace hocket::interop

// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Words of shell scripts, and expansions that are deeper or larger than any of a person.
#include "interop/shell/shell.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/error.h"
#include "interop/shell/sum.h"

namespace hocket::interop {
namespace {

std::vector<std::string> words_of(const std::string& script) {
  std::vector<std::string> words;
  for (const auto& command : read_shell(script, "run.sh").commands) {
    for (const ShellWord& word : command) {
      words.push_back(word.text);
    }
  }
  return words;
}

std::string error_of(const std::string& script) {
  try {
    read_shell(script, "run.sh");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

TEST(ShellSum, GivesTheResultOfAShell) {
  EXPECT_EQ(shell_sum("2 * (3 + 4) - 10 / 3"), 11);
  EXPECT_EQ(shell_sum("(0 - 9223372036854775807 - 1) / (0 - 1)"), std::nullopt);
  EXPECT_EQ(shell_sum("0 - (0 - 9223372036854775807 - 1)"), std::nullopt);
  EXPECT_EQ(shell_sum("(0 - 6) / (0 - 1)"), 6);
  EXPECT_EQ(shell_sum("4 / 0"), std::nullopt);
  EXPECT_EQ(shell_sum("9223372036854775807 + 1"), std::nullopt);
  EXPECT_EQ(shell_sum("a + 1"), std::nullopt);
  EXPECT_EQ(shell_sum(repeated("(", 500) + "7" + repeated(")", 500)), 7);
  EXPECT_EQ(shell_sum(repeated("(", 1'000'000) + "7" + repeated(")", 1'000'000)), std::nullopt);
}

TEST(Shell, ExpandsWordsAndTakesTheBranchThatRuns) {
  EXPECT_EQ(words_of("N=3\nif [ $N -gt 2 ]; then\n  run --a $((N * 2)) 2>&1 | tee log\nelse\n"
                     "  run --b\nfi\ncase $N in\n 3) last \"${M:-x y}\" ;;\n *) other ;;\nesac\n"),
            (std::vector<std::string>{"run", "--a", "6", "tee", "log", "last", "x y"}));
}

TEST(Shell, TestsAreJoinedFromTheLeft) {
  const auto branch = [](const std::string& condition) {
    return words_of("if " + condition + "; then\n  one\nelse\n  two\nfi\n");
  };
  EXPECT_EQ(branch("[ 1 = 1 ] || [ 1 = 2 ] && [ 1 = 3 ]"), std::vector<std::string>{"two"});
  EXPECT_EQ(branch("[ 1 = 2 ] && [ 1 = 1 ] || [ 3 = 3 ]"), std::vector<std::string>{"one"});
  EXPECT_EQ(branch("[ -f x ] && [ 1 = 2 ]"), std::vector<std::string>{"two"});
  EXPECT_EQ(branch(repeated("[ 1 = 1 ] && ", 100'000) + "[ 1 = 2 ]"),
            std::vector<std::string>{"two"});
}

TEST(Shell, RefusesDeeplyNestedExpansions) {
  for (const auto& [open, close] : {std::pair{"$((1 + ", "))"}, {"${A:-", "}"}}) {
    const std::string script = "X=" + repeated(open, 100'000) + "1" + repeated(close, 100'000);
    EXPECT_NE(error_of(script + "\n").find("inside of each other"), std::string::npos) << open;
  }
  EXPECT_EQ(words_of("run ${A:-${B:-$((1 + $((2))))}}\n"), (std::vector<std::string>{"run", "3"}));
}

}  // namespace
}  // namespace hocket::interop

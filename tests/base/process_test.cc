// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace hocket {
namespace {

TEST(Process, GivesInputAndTakesOutput) {
  // More than a pipe holds, both ways.
  std::string text;
  for (int i = 0; i < 200000; ++i) {
    text += std::to_string(i) + "\n";
  }
  EXPECT_EQ(run_command("cat", text, "cat"), text);
  EXPECT_EQ(run_command("cat > /dev/null; echo done", text, "reader"), "done\n");
  EXPECT_EQ(run_command("echo done", text, "one that does not read"), "done\n");
  EXPECT_EQ(run_command("cat", "", "nothing"), "");
}

TEST(Process, ErrorsSayHowTheCommandFailed) {
  const auto what = [](const char* command) -> std::string {
    try {
      run_command(command, "text", "the command");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kRun);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(what("cat; exit 3").find("[the command] it ended with status 3"), std::string::npos);
  EXPECT_NE(what("kill -9 $$").find("it was ended by signal 9"), std::string::npos);
  EXPECT_NE(what("no_such_command 2> /dev/null").find("status 127"), std::string::npos);
}

}  // namespace
}  // namespace hocket

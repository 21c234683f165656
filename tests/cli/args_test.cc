// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace hocket::cli {
namespace {

using Words = std::vector<std::string>;

struct Given {
  std::string model;
  Words names;
  int64_t tokens = 5, port = 1;
  bool flag = false;
};

Given given_by(const Words& words) {
  Given given;
  Args args("serve");
  args.positional("MODEL", &given.model, "a model", /*required=*/false);
  args.positional_option("--model");
  args.list("--name", "NAME", &given.names, "names");
  args.option("--tokens", "N", &given.tokens, "tokens", 1, 1 << 30);
  args.option("--port", "N", &given.port, "port");
  args.flag("--flag", &given.flag, "a flag");
  args.foreign("-tp", "is a flag of vLLM; the same here: --set plan.tp=N");
  args.run([] { return 0; });
  args.call(words);
  return given;
}

std::string error_of(const Words& words) {
  try {
    given_by(words);
    return "";
  } catch (const Error& error) {
    return std::string(error.text());
  }
}

TEST(Args, AListTakesTheWordsBehindItAndLeavesThePositionalOne) {
  const auto expect = [](const Words& words, const Words& names) {
    const Given given = given_by(words);
    EXPECT_EQ(given.model, "m");
    EXPECT_EQ(given.names, names);
  };
  expect({"m", "--name", "a", "b"}, {"a", "b"});
  expect({"m", "--name=a", "--name", "b", "c", "--port", "2"}, {"a", "b", "c"});
  expect({"--name", "a", "b", "--model", "m"}, {"a", "b"});
  expect({"--name", "a", "b", "--port", "2", "m"}, {"a", "b"});
  expect({"--name", "a", "b", "m"}, {"a", "b"});
  expect({"--name", "a", "m", "--port", "2"}, {"a"});
  expect({"--name", "a", "--", "m"}, {"a"});
  expect({"--name", "a", "--flag", "m"}, {"a"});
  EXPECT_NE(error_of({"m", "--port", "2", "b"}).find("unexpected argument 'b'"), std::string::npos);
  EXPECT_NE(error_of({"m", "--model", "b"}).find("unexpected argument 'b'"), std::string::npos);
}

TEST(Args, IntegersHaveSuffixes) {
  EXPECT_EQ(given_by({"--tokens", "8k"}).tokens, 8000);
  EXPECT_EQ(given_by({"--tokens", "8K"}).tokens, 8192);
  EXPECT_EQ(given_by({"--tokens", "1.5m"}).tokens, 1'500'000);
  EXPECT_EQ(given_by({"--tokens=12"}).tokens, 12);
  for (const char* wrong : {"k", "8x", "1.0001k", "8kk", "1e400k", "nank", "9999t"}) {
    EXPECT_NE(error_of({"--tokens", wrong}).find("--tokens is"), std::string::npos) << wrong;
  }
}

TEST(Args, AForeignOptionNamesItsCounterpart) {
  EXPECT_EQ(error_of({"-tp", "2"}), "-tp is a flag of vLLM; the same here: --set plan.tp=N");
}

}  // namespace
}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
// Error text and exit codes; a broken invariant is a std::logic_error that names the condition.
#include "base/error.h"

#include <gtest/gtest.h>

namespace hocket {
namespace {

TEST(Error, HasATextAndAnExitCode) {
  try {
    fail("safetensors", "header is {} bytes", 7);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[safetensors] header is 7 bytes");
    EXPECT_EQ(e.kind(), Error::Kind::kInput);
    EXPECT_EQ(e.exit_code(), 2);
  }
  try {
    fail_run("rank 3", "no answer for {} s", 60);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[rank 3] no answer for 60 s");
    EXPECT_EQ(e.exit_code(), 1);
  }
}

TEST(Error, ANoteKeepsKindAndCause) {
  const Error stopped(Error::Kind::kRun, "comm", "stopped: rank 1 failed", Error::Cause::stopped);
  const Error told = stopped.with("step-000004 is complete");
  EXPECT_STREQ(told.what(), "[comm] stopped: rank 1 failed; step-000004 is complete");
  EXPECT_EQ(told.kind(), Error::Kind::kRun);
  EXPECT_EQ(told.cause(), Error::Cause::stopped);
  EXPECT_EQ(Error(Error::Kind::kInput, "a", "b").with("c").cause(), Error::Cause::own);
}

TEST(Error, KeepsItsCodeWhenTextIsAdded) {
  EXPECT_EQ(Error(Error::Kind::kInput, "a", "b").code(), Error::Code::none);
  try {
    fail_with(Error::Code::layout, "lower", "{} lies badly", "x");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[lower] x lies badly");
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_EQ(e.with("try another").code(), Error::Code::layout);
  }
  const Error run(Error::Kind::kRun, "exec:x", "failed", Error::Cause::stopped);
  const Error coded = run.with(Error::Code::command);
  EXPECT_EQ(coded.code(), Error::Code::command);
  EXPECT_STREQ(coded.what(), "[exec:x] failed");
  EXPECT_EQ(coded.kind(), Error::Kind::kRun);
  EXPECT_EQ(coded.cause(), Error::Cause::stopped);
}

TEST(Error, GivesItsPlaceAndItsTextSeparately) {
  const Error plain(Error::Kind::kInput, "a] [b", "c] d");  // brackets belong to their part
  EXPECT_STREQ(plain.what(), "[a] [b] c] d");
  EXPECT_EQ(plain.where(), "a] [b");
  EXPECT_EQ(plain.text(), "c] d");
  const Error told = plain.with("e");
  EXPECT_EQ(told.where(), "a] [b");
  EXPECT_EQ(told.text(), "c] d; e");
  EXPECT_EQ(Error(Error::Kind::kInput, "", "").text(), "");
}

TEST(Error, CheckNamesTheCondition) {
  HOCKET_CHECK(1 + 1 == 2, "never printed");
  try {
    HOCKET_CHECK(1 + 1 == 3, "sum is {}", 2);
    FAIL();
  } catch (const std::logic_error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("1 + 1 == 3 does not hold: sum is 2"), std::string::npos) << text;
    EXPECT_NE(text.find("error_test.cc:"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace hocket

// SPDX-License-Identifier: Apache-2.0
// The writer's exact text; a parser reads the same values back.
#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace hocket {
namespace {

using nlohmann::json;

TEST(JsonWriter, WritesCommasAndNesting) {
  JsonWriter w;
  w.object().member("tasks", 3).key("sizes").array().value(1).value(2).end();
  w.member("names", std::vector<std::string>{"a", "b"}).member("ok", true).key("none").null();
  w.key("empty").object().end().key("list").array().end().end();
  EXPECT_EQ(
      w.take(),
      R"({"tasks":3,"sizes":[1,2],"names":["a","b"],"ok":true,"none":null,"empty":{},"list":[]})");
}

// As Python's bytes.decode(errors="replace") and Rust's from_utf8_lossy count them.
TEST(JsonWriter, OneReplacementStandsForABeginningOfACharacter) {
  const std::pair<const char*, int> cases[] = {
      {"\xE2\x82", 1},         {"\xE2\x82z", 1}, {"\xF0\x9F\x98", 1}, {"\xF0\x9F\x98\xF0", 2},
      {"\xF0\x8F\xBF\xBF", 4}, {"\xC3", 1},      {"\x80\x80", 2},     {"\xED\xA0\x80", 3},
      {"\xE0\x9F\xBF", 3},     {"\xF4\x90", 2},  {"\xC1\xBF", 2},     {"\xF1\x80\x80", 1},
      {"\xE0\xA0", 1},         {"\xF0\x90", 1},  {"\xE2\x82\xAC", 0}};
  for (const auto& [bytes, replacements] : cases) {
    std::string text;
    append_json_string(&text, bytes);
    const std::string back = json::parse(text).get<std::string>();
    int count = 0;
    for (size_t at = 0; (at = back.find("\uFFFD", at)) != std::string::npos; ++at) {
      ++count;
    }
    EXPECT_EQ(count, replacements) << text;
  }
}

TEST(JsonWriter, IndentsIfAsked) {
  JsonWriter w({.indent = 2});
  w.object().member("a", 1).key("b").array().object().member("c", "d").end().value(2).end();
  w.key("e").array().end().end();
  EXPECT_EQ(w.take(), R"({
  "a": 1,
  "b": [
    {
      "c": "d"
    },
    2
  ],
  "e": []
})");
}

TEST(JsonWriter, NumbersReadBackAndNonFiniteOnesAreNull) {
  const auto text = [](double x, int digits) {
    JsonWriter w;
    return w.value(x, digits).take();
  };
  EXPECT_EQ(text(3, 0), "3");
  EXPECT_EQ(text(-0.5, 0), "-0.5");
  EXPECT_EQ(text(1.0 / 3, 3), "0.333");
  EXPECT_EQ(text(NAN, 0), "null");
  EXPECT_EQ(text(-INFINITY, 6), "null");
  for (const double x : {0.1, 1e-300, 1e300, 123456789.125, 9007199254740993.0, -2.5e15}) {
    EXPECT_EQ(json::parse(text(x, 0)).get<double>(), x);
  }
  JsonWriter w;
  w.array().value(INT64_MIN).value(INT64_MAX).value(uint32_t{4000000000}).end();
  EXPECT_EQ(w.take(), "[-9223372036854775808,9223372036854775807,4000000000]");
}

TEST(JsonWriter, StringsReadBack) {
  using std::string_literals::operator""s;  // the zero is part of it
  const std::string nasty =
      "\" \\ / \b \f \n \t \x01 \x7f <script> \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\xb5\0."s;
  JsonWriter w;
  const std::string text = w.value(nasty).take();
  EXPECT_EQ(json::parse(text).get<std::string>(), nasty);
  EXPECT_EQ(text.find('\n'), text.npos);
}

TEST(JsonWriter, ReplacesInvalidUtf8) {
  const std::pair<std::string, std::string> cases[] = {{"a\xff"
                                                        "b",
                                                        "a\xef\xbf\xbd"
                                                        "b"},
                                                       {"\xc3", "\xef\xbf\xbd"},
                                                       {"\xe2\x82x", "\xef\xbf\xbdx"},
                                                       {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"}};
  for (const auto& [given, expected] : cases) {
    JsonWriter w;
    EXPECT_EQ(json::parse(w.value(given).take()).get<std::string>(), expected);
  }
}

TEST(JsonWriter, MisuseIsRefused) {
  EXPECT_THROW(JsonWriter().object().value(1), std::exception);
  EXPECT_THROW(JsonWriter().array().key("a"), std::exception);
  EXPECT_THROW(JsonWriter().value(1).value(2), std::exception);
  EXPECT_THROW(JsonWriter().object().key("a").end(), std::exception);
  EXPECT_THROW(JsonWriter().object().take(), std::exception);
  EXPECT_THROW(JsonWriter().array().end().end(), std::exception);
}

}  // namespace
}  // namespace hocket

// SPDX-License-Identifier: Apache-2.0
// Patterns, formats, numbers, and the bytes of characters.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "serve/grammar/formats.h"
#include "serve/grammar/number_range.h"
#include "serve/grammar/pattern.h"
#include "tests/serve/grammar/grammar_util.h"

namespace hocket::test {
namespace {

using serve::grammar::CharDfa;
using serve::grammar::decimal_of;
using serve::grammar::dfa_of_texts;
using serve::grammar::DfaOp;
using serve::grammar::number_dfa;
using serve::grammar::NumberLimits;
using serve::grammar::pattern_dfa;

struct PatternCase {
  const char* pattern;
  std::vector<std::string> yes, no;
};

TEST(GrammarPatterns, MatchAnywhereAsEcmaDoes) {
  const std::vector<PatternCase> cases = {
      {"", {"", "x"}, {}},
      {"b", {"b", "abc"}, {"", "ac"}},
      {"^b$", {"b"}, {"", "ab", "bb", "b\n"}},
      {"^a|b$", {"ax", "xb", "a", "b"}, {"xa", "bx"}},
      {"^$", {""}, {"a"}},
      {"a$|^b|c", {"xa", "bx", "xcx"}, {"ax", "xb"}},
      {"^(?:ab)*$", {"", "ab", "abab"}, {"a", "aba"}},
      {"^(?<year>[0-9]{4})-x?$", {"2024-", "2024-x"}, {"204-", "2024-xx"}},
      {"^a{2}$", {"aa"}, {"a", "aaa"}},
      {"^a{2,}$", {"aa", "aaaaa"}, {"a"}},
      {"^a{2,3}?$", {"aa", "aaa"}, {"a", "aaaa"}},
      {"^a{0}b$", {"b"}, {"ab"}},
      {"^[a-c-]+$", {"a-c", "-"}, {"d"}},
      {"^[\\]^x\\-]$", {"]", "^", "x", "-"}, {"a"}},
      {"^[^\\d\\s]$", {"a", "-", "\xC3\xA9"}, {"1", " ", "\t"}},
      {"^\\x41\\u0042\\u{1F600}$", {"AB\xF0\x9F\x98\x80"}, {"AB"}},
      {"^\\uD83D\\uDE00$", {"\xF0\x9F\x98\x80"}, {""}},
      {"^.$", {"a", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"\n", "", "\xE2\x80\xA8"}},
      {"^\\.\\/\\$\\{\\}$", {"./${}"}, {"x/${}"}},
      {"^\\W\\D\\S$", {"-a-", "+-+"}, {"a--", "-1-", "-- "}},
      // ECMA-262 and Python differ in letters and digits beyond ASCII: neither side has them.
      {"^\\W$", {"-", "\xF0\x9F\x98\x80"}, {"a", "\xC3\xA9", "\xE4\xB8\xAD", "\xC2\xB2"}},
      {"^\\D$", {"a", "\xC3\xA9", "\xE4\xB8\xAD"}, {"1", "\xD9\xA1"}},
      {"^[^\\W]$", {"a", "1"}, {"-", "\xC3\xA9"}},
      {"^[^\\w]$", {"-"}, {"a", "\xC3\xA9"}},
      {"^[^\\d]$", {"a", "\xC3\xA9"}, {"1", "\xD9\xA1"}},
      {"^[^\\D]$", {"1"}, {"a", "\xD9\xA1"}},
      {"^[^\\S]$", {" "}, {"a", "\xC2\x85"}},
      {"^(a|b(c|d)){2}$", {"abc", "bdbc", "aa"}, {"a", "bb"}},
      {"^[]$", {}, {"", "a"}},
      {"^[^]$", {"a", "\n"}, {""}},
      {"(^a)b", {"ab", "abc"}, {"xab"}},
      {"a(b$)", {"ab", "xab"}, {"abx"}},
      {"^\\0\\t\\n$", {std::string("\0\t\n", 3)}, {"0\t\n"}},
  };
  for (const PatternCase& each : cases) {
    const CharDfa dfa = pattern_dfa(each.pattern, "test");
    for (const std::string& text : each.yes) {
      EXPECT_TRUE(dfa.matches(text)) << each.pattern << " " << text;
    }
    for (const std::string& text : each.no) {
      EXPECT_FALSE(dfa.matches(text)) << each.pattern << " " << text;
    }
  }
}

TEST(GrammarPatterns, UnsupportedConstructsAreRefusedByName) {
  for (const auto& [pattern, words] :
       std::vector<std::pair<const char*, const char*>>{{"(?=a)", "look-ahead"},
                                                        {"(?!a)", "look-ahead"},
                                                        {"(?<=a)", "look-behind"},
                                                        {"(?<!a)", "look-behind"},
                                                        {"\\bx", "\\b"},
                                                        {"(a)\\1", "back reference"},
                                                        {"\\k<a>", "back reference"},
                                                        {"\\p{L}", "\\p"},
                                                        {"(", "without )"},
                                                        {")", ") without ("},
                                                        {"[a", "[ without ]"},
                                                        {"*a", "repeats nothing"},
                                                        {"a**", "repeats a rep"},
                                                        {"a{3,2}", "out of order"},
                                                        {"a{x}", "without a number"},
                                                        {"[z-a]", "out of order"},
                                                        {"\\", "ends in"},
                                                        {"\\q", "unknown escape"},
                                                        {"^*", "repeats ^"},
                                                        {"\\uD83D", "surrogate"},
                                                        {"\\xg1", "hexadecimal"},
                                                        {"a{99999}", "more than"},
                                                        {"(?i)a", "unknown kind"},
                                                        {"[\\d-x]", "between classes"},
                                                        {"\xFF", "UTF-8"},
                                                        {"a}", "closing bracket"}}) {
    const std::string error = error_of([&] { pattern_dfa(pattern, "here"); });
    EXPECT_EQ(error.find("[here] pattern"), 0U) << pattern << ": " << error;
    EXPECT_NE(error.find(words), std::string::npos) << pattern << ": " << error;
  }
}

TEST(GrammarPatterns, AutomataAreIntersectedUnitedAndSubtracted) {
  const CharDfa a = pattern_dfa("^a", "test"), z = pattern_dfa("z$", "test");
  const CharDfa both = *dfa_combine(a, z, DfaOp::both);
  const CharDfa either = *dfa_combine(a, z, DfaOp::either);
  const CharDfa only = *dfa_combine(a, z, DfaOp::first_only);
  for (const char* text : {"", "a", "z", "az", "ab", "bz", "zz", "aaz"}) {
    EXPECT_EQ(both.matches(text), a.matches(text) && z.matches(text)) << text;
    EXPECT_EQ(either.matches(text), a.matches(text) || z.matches(text)) << text;
    EXPECT_EQ(only.matches(text), a.matches(text) && !z.matches(text)) << text;
  }
  EXPECT_TRUE(dfa_combine(a, pattern_dfa("^b", "test"), DfaOp::both)->empty());
  EXPECT_FALSE(dfa_of_texts({"x\xFF", "y"})->matches("x\xFF"));
}

TEST(GrammarFormats, AcceptValidTextsAndRefuseInvalidOnes) {
  const std::map<std::string, PatternCase> cases = {
      {"date",
       {"",
        {"2024-02-29", "0001-01-01", "2000-02-29", "1999-12-31"},
        {"2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "0000-01-01", "24-1-1"}}},
      {"time", {"", {"00:00:00Z", "23:59:59.123+05:30"}, {"24:00:00Z", "12:00", "12:00:60Z"}}},
      {"date-time",
       {"", {"2024-02-29T12:00:00Z"}, {"2024-02-29 12:00:00Z", "2023-02-29T12:00:00Z"}}},
      {"duration",
       {"",
        {"P3Y6M4DT12H30M5S", "PT0S", "P4W", "P1D", "PT1H"},
        {"P", "PT", "P1", "P1DT", "P1Y2D3M"}}},
      {"uuid",
       {"", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"}}},
      {"email", {"", {"a@b.co", "first.last+x@sub.example.org"}, {"a@b", "a b@c.de", ".a@b.co"}}},
      {"hostname", {"", {"a", "example.org", "a-b.c"}, {"-a", "a-", "a..b", "a_b"}}},
      {"ipv4", {"", {"0.0.0.0", "255.1.20.99"}, {"256.0.0.1", "1.2.3", "01.2.3.4"}}},
      {"ipv6", {"", {"2001:db8:0:0:0:0:2:1"}, {"2001:db8", "g:0:0:0:0:0:0:1"}}},
      {"uri", {"", {"http://a", "https://example.org:80/a/b?c=d#e"}, {"ftp://a", "http://", "a"}}},
  };
  EXPECT_EQ(cases.size(), serve::grammar::string_formats().size());
  for (const auto& [name, each] : cases) {
    const auto* format = serve::grammar::find_format(name);
    ASSERT_NE(format, nullptr) << name;
    const CharDfa dfa = pattern_dfa(format->pattern, name);
    for (const std::string& text : each.yes) {
      EXPECT_TRUE(dfa.matches(text)) << name << " " << text;
    }
    for (const std::string& text : each.no) {
      EXPECT_FALSE(dfa.matches(text)) << name << " " << text;
    }
  }
}

OrderedJson drawn_bound(Rng* rng) {
  const int64_t whole = static_cast<int64_t>(rng->below(2200)) - 1100;
  switch (rng->below(4)) {
    case 0:
      return whole / 100;
    case 1:
      return whole;
    case 2:
      return static_cast<double>(whole) / 100;
    default:
      return static_cast<double>(whole) / 8;
  }
}

/// Every number with up to two digits of a fraction around the bounds is accepted or not as
/// arithmetic says.
TEST(GrammarNumbers, BoundsAreExact) {
  Rng rng(5);
  for (int round = 0; round < 150; ++round) {
    NumberLimits limits;
    if (rng.below(4) != 0) {
      limits.raise({*decimal_of(drawn_bound(&rng)), rng.below(2) == 0});
    }
    if (rng.below(4) != 0) {
      limits.lower({*decimal_of(drawn_bound(&rng)), rng.below(2) == 0});
    }
    if (rng.below(3) == 0) {
      limits.divisor = 1 + static_cast<int64_t>(rng.below(12));
    }
    const bool integers = rng.below(2) == 0;
    if (limits.empty(integers)) continue;
    const CharDfa dfa = number_dfa(limits, integers, "test");
    const auto value = [](const auto& bound) { return std::stod(bound->value.text()); };
    for (int64_t hundredths = -115'000; hundredths <= 115'000; hundredths += 1 + rng.below(40)) {
      const std::string sign = hundredths < 0 ? "-" : "";
      const int64_t size = std::abs(hundredths);
      std::string text = sign + std::to_string(size / 100);
      const bool point = size % 100 != 0 || rng.below(4) == 0;
      if (point) {
        text += "." + std::to_string(size % 100 / 10) + std::to_string(size % 10);
      }
      const double number = static_cast<double>(hundredths) / 100;
      bool valid = !(limits.low && (number < value(limits.low) ||
                                    (limits.low->exclusive && number == value(limits.low)))) &&
                   !(limits.high && (number > value(limits.high) ||
                                     (limits.high->exclusive && number == value(limits.high))));
      if (limits.divisor != 0) {
        valid = valid && hundredths % (100 * limits.divisor) == 0;
      }
      // Integers have no point, also not that of 2.00.
      valid = valid && !(point && (integers || limits.divisor != 0));
      ASSERT_EQ(dfa.matches(text), valid)
          << text << " in " << (limits.low ? limits.low->value.text() : "-") << " to "
          << (limits.high ? limits.high->value.text() : "-") << " by " << limits.divisor;
    }
  }
}

TEST(GrammarNumbers, FollowTheSyntaxOfJsonAndAreBounded) {
  const auto accepts = [](const std::string& schema, const std::string& text) {
    return ByteReader::of(schema).accepts(text);
  };
  const std::string integer = R"({"type": "integer"})", number = R"({"type": "number"})";
  EXPECT_TRUE(accepts(integer, "999999999999999999"));
  EXPECT_FALSE(accepts(integer, "9999999999999999999"));
  EXPECT_FALSE(accepts(integer, "01"));
  EXPECT_FALSE(accepts(integer, "1.0"));
  EXPECT_TRUE(accepts(number, "-0.5e-10"));
  EXPECT_TRUE(accepts(number, "1E+22"));
  EXPECT_FALSE(accepts(number, "1e300"));
  EXPECT_FALSE(accepts(number, "1."));
  EXPECT_FALSE(accepts(number, ".5"));
  EXPECT_FALSE(accepts(number, "+1"));
  EXPECT_FALSE(accepts(R"({"type": "number", "exclusiveMinimum": 0})", "0.000"));
  EXPECT_TRUE(accepts(R"({"type": "number", "exclusiveMinimum": 0})", "0.0001"));
  // A double would round these to the bound itself.
  EXPECT_FALSE(accepts(R"({"type": "number", "exclusiveMinimum": 0.1})", "0.10000000000000000001"));
  EXPECT_FALSE(accepts(R"({"type": "number", "exclusiveMaximum": 3})", "2.99999999999999999999"));
  EXPECT_TRUE(accepts(R"({"type": "number", "exclusiveMaximum": 3})", "2.9999"));
  EXPECT_TRUE(
      accepts(R"({"type": "integer", "minimum": 12345678901234567890})", "12345678901234567891"));
  EXPECT_FALSE(
      accepts(R"({"type": "integer", "minimum": 12345678901234567890})", "12345678901234567889"));
}

TEST(GrammarStrings, EscapesAndCharactersMustBeWhole) {
  ByteReader any = ByteReader::of(R"({"type": "string"})");
  for (const char* text : {R"("\ud83d\ude00")", R"("\u00e9\n\/\"")", R"("\uABcd")", "\"\x7F\""}) {
    EXPECT_TRUE(any.accepts(text)) << text;
  }
  for (const char* text :
       {R"("\ud83d")", R"("\ude00\ud83d")", R"("\ud83dx")", R"("\x")", "\"\n\"", "\"\xFF\"",
        "\"\xC3\"", "\"\xED\xA0\x80\"", "\"\xC0\x80\"", "\"\xF4\x90\x80\x80\""}) {
    EXPECT_FALSE(any.accepts(text)) << text;
  }
  EXPECT_EQ(any.allowed("\"\xED\xA0"), 2U);  // a surrogate
  ByteReader two = ByteReader::of(R"({"type": "string", "minLength": 2, "maxLength": 2})");
  for (const char* text : {"\"ab\"", "\"\xC3\xA9\xF0\x9F\x98\x80\"", R"("\ud83d\ude00\n")"}) {
    EXPECT_TRUE(two.accepts(text)) << text;
  }
  for (const char* text : {"\"a\"", "\"abc\"", R"("\ud83d\ude00")"}) {
    EXPECT_FALSE(two.accepts(text)) << text;
  }
}

TEST(GrammarSpace, AllowsOneBlankOrAnIndentedLineAfterAToken) {
  ByteReader any = ByteReader::of("{}");
  for (const char* text :
       {"{\"a\": [1, 2], \"b\": {}}", "{\"a\":[1,2]}", "[\n    1,\n    2\n]", "{ }", "[ ]"}) {
    EXPECT_TRUE(any.accepts(text)) << text;
  }
  for (const char* text : {" {}", "{} ", "{  }", "[1 , 2]", "{\"a\" : 1}", "[\n\n1]"}) {
    EXPECT_FALSE(any.accepts(text)) << text;
  }
  EXPECT_EQ(any.allowed("[\n" + std::string(1000, ' ')), 50U);
}

}  // namespace
}  // namespace hocket::test

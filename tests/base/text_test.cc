// SPDX-License-Identifier: Apache-2.0
// Text helpers: distances, nearest names, strict numbers, sizes and times as people read them.
#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace hocket {
namespace {

TEST(Text, EditDistanceCountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("stpes", "steps"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("micro_batch", "microbatch"), 1);
}

TEST(Text, NearestIsMeantOrEmpty) {
  const std::vector<std::string> names = {"steps", "seed", "peak_lr", "global_batch"};
  EXPECT_EQ(nearest("stpes", names), "steps");
  EXPECT_EQ(nearest("GLOBALBATCH", names), "global_batch");
  EXPECT_EQ(nearest("optimizer", names), "");
  EXPECT_EQ(nearest("x", {"y", "z"}), "");
  EXPECT_EQ(nearest("f23", {"f32", "f64", "bf16"}), "f32");
  EXPECT_EQ(nearest("fp8", {"f32", "f64", "bf16"}), "");
  EXPECT_EQ(nearest("pp", {"dp", "pp", "ep"}), "pp");
}

TEST(Text, SplitsJoinsAndTrims) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
  EXPECT_EQ(join({"a", "b"}, "/"), "a/b");
  EXPECT_EQ(trim(" \t a b \r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Text, ParsesNumbersStrictly) {
  int64_t i = -1;
  EXPECT_TRUE(parse_int("-9223372036854775808", &i));
  EXPECT_EQ(i, INT64_MIN);
  EXPECT_TRUE(parse_int("+7", &i));
  EXPECT_EQ(i, 7);
  for (const char* bad :
       {"", "+", "+-1", "1 ", " 1", "1.0", "1e3", "0x10", "9223372036854775808"}) {
    EXPECT_FALSE(parse_int(bad, &i)) << bad;
  }
  EXPECT_EQ(i, 7);
  double d = 0;
  EXPECT_TRUE(parse_double("-2.5e-3", &d));
  EXPECT_EQ(d, -2.5e-3);
  for (const char* bad : {"", "1,5", "nan", "inf", "1e999", "1.5x", "--1"}) {
    EXPECT_FALSE(parse_double(bad, &d)) << bad;
  }
}

TEST(Text, PrintsBytesAndTimesInReadableUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(12.34 * (1 << 30)), "12.3 GiB");
  EXPECT_EQ(human_time(850e-9), "850 ns");
  EXPECT_EQ(human_time(4.56e-3), "4.56 ms");
  EXPECT_EQ(human_time(0.9999), "1 s");
  EXPECT_EQ(human_time(125), "2 min 05 s");
  EXPECT_EQ(human_time(12000), "3 h 20 min");
  EXPECT_EQ(human_count(30.53e9), "30.5 B");
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(number_text(0.25), "0.25");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(2, "file"), "2 files");
}

TEST(Text, QuotesWordsForAShell) {
  EXPECT_EQ(shell_quoted("runs/a-b_1.2,x=3"), "runs/a-b_1.2,x=3");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("two words"), "'two words'");
  EXPECT_EQ(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
}

TEST(Text, PrintableTextDoesNotAct) {
  EXPECT_EQ(printable("a\tb\nc \\ \xC3\xA4"), "a\tb\nc \\ \xC3\xA4");
  EXPECT_EQ(printable("\x1b[31m\r\x7f\b"), "\\x1b[31m\\x0d\\x7f\\x08");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J\xC2\xA0\xC2"),
            "\\x9b2J\xC2\xA0\xC2");
  EXPECT_EQ(printable(std::string(1, '\0')), "\\x00");
}

TEST(Text, QuoteHidesControlBytes) {
  EXPECT_EQ(quote("a\nb\x1b["), "'a\\nb\\x1b['");
  EXPECT_EQ(quote("abcdef", 3), "'abc...'");
}

TEST(Text, EscapesGivenCharactersAndReadsThemBack) {
  EXPECT_EQ(escape("plain, spaced", "\"'"), "plain, spaced");
  EXPECT_EQ(escape("it's \\ \n", "'"), "it\\x27s \\x5c \\x0a");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  const std::string hidden = escape(all, "\"' =");
  for (const char c : std::string_view("\"' =\n\0\x7f", 7)) {
    EXPECT_EQ(hidden.find(c), hidden.npos);
  }
  std::string back;
  ASSERT_TRUE(unescape(hidden, &back));
  EXPECT_EQ(back, all);
  for (const char* bad : {"\\", "\\x2", "\\xg0", "\\n", "a\\x-1"}) {
    EXPECT_FALSE(unescape(bad, &back)) << bad;
  }
}

}  // namespace
}  // namespace hocket

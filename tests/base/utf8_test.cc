// SPDX-License-Identifier: Apache-2.0
// Well-formed UTF-8, and code points there and back.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace hocket {
namespace {

TEST(Utf8, LengthIsZeroForAnInvalidCharacter) {
  EXPECT_EQ(utf8_length("a", 0), 1);
  EXPECT_EQ(utf8_length("\xC3\xA9", 0), 2);
  EXPECT_EQ(utf8_length("\xE2\x82\xAC", 0), 3);
  EXPECT_EQ(utf8_length("\xF0\x9F\x98\x80", 0), 4);
  EXPECT_EQ(utf8_length("\xF4\x8F\xBF\xBF", 0), 4);  // U+10FFFF
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xC3", "\xE2\x82",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80"}) {
    EXPECT_EQ(utf8_length(bad, 0), 0) << bad;
  }
  EXPECT_EQ(utf8_valid_until("abcdefghij\xFFk", 0), 10U);
  EXPECT_EQ(utf8_valid_until("abcdefghij\xFFk", 11), 12U);
}

TEST(Utf8, FindsInvalidTexts) {
  EXPECT_TRUE(is_utf8("a \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"));
  for (const char* bad : {"\xc0\x80", "\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xe0\x80\x80", "\xff"}) {
    EXPECT_FALSE(is_utf8(bad)) << quote(bad);
  }
}

TEST(Utf8, CodePointsThereAndBack) {
  for (uint32_t c = 0; c < 0x110000; c += c < 0x900 || (c > 0xD000 && c < 0x11000) ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "x";
    append_utf8(c, &text);
    const int length = utf8_length(text, 1);
    ASSERT_EQ(static_cast<size_t>(length), text.size() - 1) << c;
    ASSERT_EQ(utf8_code_point(text, 1, length), c);
  }
}

}  // namespace
}  // namespace hocket

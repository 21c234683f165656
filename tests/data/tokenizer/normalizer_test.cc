// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

using Kind = NormalizerStep::Kind;

NormalizerStep step_of(Kind kind, const std::string& pattern = "", const std::string& content = "",
                       bool regex = false) {
  NormalizerStep step;
  step.kind = kind;
  step.pattern = pattern;
  step.content = content;
  step.regex = regex;
  return step;
}

std::string normalized(std::vector<NormalizerStep> steps, std::string_view text) {
  return Normalizer(std::move(steps)).apply(text);
}

std::string nfc(std::string_view text) { return normalized({step_of(Kind::nfc)}, text); }

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(nfc("\uAC00\u11A8"), "\uAC01");
  EXPECT_EQ(nfc("\u212B"), "\u00C5");               // a singleton
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093C");         // excluded from composition
  EXPECT_EQ(nfc("a\u0301\u0323"), "\u1EA1\u0301");  // ordered, then composed
  EXPECT_EQ(nfc("\u1E0B\u0323"), "\u1E0D\u0307");
  EXPECT_EQ(nfc("a\u0308\u0301"), "\u00E4\u0301");   // the second is blocked no more
  EXPECT_EQ(nfc("a\u0305\u0301"), "a\u0305\u0301");  // blocked by one of its class
  EXPECT_EQ(nfc("e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_EQ(nfc("\u0301"), "\u0301");
  EXPECT_EQ(nfc("plain caf\u00E9 \u65E5\u672C \xFF"), "plain caf\u00E9 \u65E5\u672C \xFF");
}

TEST(NormalForms, DecomposeAndFold) {
  EXPECT_EQ(normalized({step_of(Kind::nfd)}, "\u00E9 \uAC01"), "e\u0301 \u1100\u1161\u11A8");
  EXPECT_EQ(normalized({step_of(Kind::nfd)}, "\uFB01"), "\uFB01");
  EXPECT_EQ(normalized({step_of(Kind::nfkc)}, "\uFB01 \uFF21e\u0301 \u2460"), "fi A\u00E9 1");
  EXPECT_EQ(normalized({step_of(Kind::nfkd)}, "\u00E9\u3392"), "e\u0301MHz");
}

// Marks of alternating classes: each has to move far.
TEST(NormalForms, ManyMarksTakeNoLongTime) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) {
    text += i % 2 ? "\u0316" : "\u0301";
  }
  EXPECT_EQ(nfc(text).size(), text.size() - 1);  // one composes: 1 + 2 bytes become 2
}

TEST(Normalizer, LowercasesAndStripsAccentsAndBlanks) {
  EXPECT_EQ(normalized({step_of(Kind::lowercase)}, "\u00C4B\u0130\xFF Z"), "\u00E4bi\u0307\xFF z");
  EXPECT_EQ(normalized({step_of(Kind::nfd), step_of(Kind::strip_accents)}, "\u00E9\u0301x"), "ex");
  NormalizerStep strip = step_of(Kind::strip);
  strip.left = true;
  EXPECT_EQ(normalized({strip}, " \u3000a b\n"), "a b\n");
  strip.right = true;
  EXPECT_EQ(normalized({strip}, " \u3000a b\n"), "a b");
  EXPECT_EQ(normalized({strip}, " \n"), "");
}

TEST(Normalizer, PrependsAndReplaces) {
  const std::vector<NormalizerStep> llama = {step_of(Kind::prepend, "", "\u2581"),
                                             step_of(Kind::replace, " ", "\u2581")};
  EXPECT_EQ(normalized(llama, "a  b"), "\u2581a\u2581\u2581b");
  EXPECT_EQ(normalized(llama, ""), "");
  EXPECT_EQ(normalized({step_of(Kind::replace, " {2,}", " ", true)}, "a   b  c d"), "a b c d");
  EXPECT_EQ(normalized({step_of(Kind::replace, "x*", "-", true)}, "axb"), "-a-b-");
  EXPECT_ERROR(Normalizer({step_of(Kind::replace)}), "empty pattern");
}

TEST(Normalizer, MapsEveryByteToItsOrigin) {
  const Normalizer normalizer(
      {step_of(Kind::prepend, "", "_"), step_of(Kind::nfc), step_of(Kind::replace, " ", "<>")});
  const std::string text = "e\u0301 b";
  std::vector<ByteRange> places;
  for (size_t i = 0; i < text.size(); ++i) {
    places.push_back({i, i + 1});
  }
  std::array<Rewritten, 2> buffers;
  const Piece piece = normalizer.apply({text, places.data(), true}, &buffers);
  ASSERT_EQ(piece.text, "_\u00E9<>b");
  const ByteRange e{0, 3}, blank{3, 4};
  EXPECT_EQ(std::vector<ByteRange>(piece.from, piece.from + piece.text.size()),
            (std::vector<ByteRange>{{0, 0}, e, e, blank, blank, {4, 5}}));
  EXPECT_TRUE(piece.at_start);
  NormalizerStep strip = step_of(Kind::strip);
  strip.left = true;
  EXPECT_FALSE(Normalizer({strip}).apply({" a", nullptr, true}, &buffers).at_start);
}

TEST(Charsmap, BrokenTablesAreRefused) {
  for (const std::string& table :
       {std::string(), std::string(3, 'x'), std::string("\x08\0\0\0abcd", 8),
        std::string("\x03\0\0\0abc", 7), std::string("\0\0\0\0abc", 7)}) {
    EXPECT_ERROR(Normalizer({step_of(Kind::precompiled, "", table)}), "table of replacements");
  }
  // A root that leads nowhere: the text stays.
  EXPECT_EQ(
      normalized({step_of(Kind::precompiled, "", std::string("\x04\0\0\0\xFF\xFF\xFF\xFFx", 9))},
                 "a\u0301\xFF"),
      "a\u0301\xFF");
}

}  // namespace
}  // namespace hocket::data

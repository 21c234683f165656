// SPDX-License-Identifier: Apache-2.0
// Text that ends at a stop string: the kept text, and the part that a stream has seen at any time.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "serve/text.h"

namespace hocket::serve {
namespace {

/// Text and stop string of given pieces, and the stream's bytes.
struct Stopped {
  std::string text, stop, streamed;
  bool goes_on = true;
};

Stopped feed(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  Stopped out;
  StoppedText text(stops);
  for (const std::string& piece : pieces) {
    if (!(out.goes_on = text.append(piece))) break;
    out.streamed += text.take();
  }
  out.streamed += text.take_all();
  out.text = text.text();
  out.stop = text.stop();
  return out;
}

TEST(StoppedText, StopsAcrossPieces) {
  const Stopped s = feed({"one t", "w", "o three", " four"}, {"two"});
  EXPECT_EQ(s.text, "one ");
  EXPECT_EQ(s.streamed, "one ");
  EXPECT_EQ(s.stop, "two");
  EXPECT_FALSE(s.goes_on);
}

TEST(StoppedText, PassesOnAnUnfinishedStop) {
  const Stopped s = feed({"a<", "/", "b", "<"}, {"</s>"});
  EXPECT_EQ(s.text, "a</b<");
  EXPECT_EQ(s.streamed, s.text);
  EXPECT_TRUE(s.goes_on);
}

TEST(StoppedText, FirstEndCounts) {
  EXPECT_EQ(feed({"xabcdy"}, {"bcd", "ab"}).stop, "ab");
  // Both end at the same byte: the longer one, which leaves less text.
  EXPECT_EQ(feed({"xabcdy"}, {"cd", "abcd"}).text, "x");
  EXPECT_EQ(feed({"aab", "aac"}, {"aac"}).text, "aab");
}

TEST(StoppedText, StreamsWholeCharacters) {
  std::string streamed;
  StoppedText text({});
  const std::string word = "naïve 日本 🎷.";
  for (const char byte : word) {
    text.append(std::string_view(&byte, 1));
    const std::string part = text.take();
    EXPECT_TRUE(is_utf8(part));
    streamed += part;
  }
  EXPECT_EQ(streamed, word);
}

TEST(StoppedText, KeepsItsStopOrIgnoresIt) {
  StoppedText kept({"two"}, true);
  EXPECT_TRUE(kept.append("one t"));
  EXPECT_FALSE(kept.append("wo three"));
  EXPECT_EQ(kept.text(), "one two");
  StoppedText early({"two"});
  EXPECT_TRUE(early.append("one two", false));
  EXPECT_TRUE(early.append(" tw"));
  EXPECT_FALSE(early.append("o!"));
  EXPECT_EQ(early.text(), "one two ");
}

TEST(StoppedText, EqualsASearchOfTheWhole) {
  Rng rng(3);
  const auto letters = [&](int64_t most) {
    std::string out;
    for (int64_t n = rng.between(1, most); n > 0; --n) {
      out += static_cast<char>('a' + rng.below(3));
    }
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops = {letters(4), letters(3)};
    std::vector<std::string> pieces;
    std::string whole;
    for (int i = 0; i < 6; ++i) {
      pieces.push_back(letters(3));
      whole += pieces.back();
    }
    size_t begin = whole.size(), first_end = whole.npos;
    for (const std::string& stop : stops) {
      const size_t at = whole.find(stop);
      if (at == whole.npos) continue;
      if (at + stop.size() < first_end || (at + stop.size() == first_end && at < begin)) {
        begin = at;
        first_end = at + stop.size();
      }
    }
    // Stops are looked for piece by piece: the first piece that completes one decides.
    const Stopped s = feed(pieces, stops);
    EXPECT_EQ(s.text, whole.substr(0, begin)) << whole << " " << stops[0] << " " << stops[1];
    EXPECT_EQ(s.streamed, s.text);
    EXPECT_EQ(s.goes_on, first_end == whole.npos);
  }
}

}  // namespace
}  // namespace hocket::serve

// SPDX-License-Identifier: Apache-2.0
// Training data as people see them: sequences apart, trained parts in turn, lengths counted.
#include "data/examples/shown.h"

#include <gtest/gtest.h>

#include "tests/data/examples/example_util.h"

namespace hocket::data {
namespace {

using Parts = std::vector<std::pair<bool, std::string>>;

Parts parts_of(const ShownSequence& sequence) {
  const Tokenizer tokenizer(chat_spec({}));
  Parts parts;
  for_each_part(sequence, tokenizer,
                [&](bool trained, const std::string& text) { parts.emplace_back(trained, text); });
  return parts;
}

TEST(Shown, SplitsASequenceIntoTrainedAndUntrainedParts) {
  ShownSequence sequence;
  EXPECT_TRUE(parts_of(sequence).empty());
  sequence.ids = {'a', 'b', 'c', 'd', 'e'};
  sequence.trained = {false, true, true, false, true};
  EXPECT_EQ(parts_of(sequence), (Parts{{false, "a"}, {true, "bc"}, {false, "d"}, {true, "e"}}));
  sequence.trained.assign(5, true);
  EXPECT_EQ(parts_of(sequence), (Parts{{true, "abcde"}}));
}

/// Two rows of four places: a document that goes on, and two that begin.
class TwoRows : public TrainingRows {
 public:
  int64_t seq_len() const override { return 4; }
  int64_t sequences_per_epoch() const override { return 2; }
  void fill(int64_t index, const SequenceOut& out) const override {
    const int32_t positions[2][4] = {{0, 1, 2, 3}, {0, 1, 0, 1}};
    for (int i = 0; i < 4; ++i) {
      out.tokens[i] = static_cast<int32_t>(10 * index + i);
      out.targets[i] = i == 2 ? kIgnoredTarget : out.tokens[i] + 1;
      out.positions[i] = positions[index][i];
    }
  }
};

TEST(Shown, ADocumentBeginsAtPositionZero) {
  const std::vector<ShownSequence> shown = shown_documents(TwoRows(), 10);
  ASSERT_EQ(shown.size(), 3u);
  EXPECT_EQ(shown[0].ids, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(shown[0].trained, (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(shown[1].ids, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(shown[2].ids, (std::vector<int32_t>{12, 13}));
  EXPECT_EQ(shown[2].place, "sequence 2, part 2");
  EXPECT_EQ(shown_documents(TwoRows(), 2).size(), 2u);
}

TEST(Shown, LengthsAreCountedByPowersOfTwo) {
  const Lengths lengths({100, 17, 32, 33, 16});
  EXPECT_EQ(lengths.quantile(0), 16);
  EXPECT_EQ(lengths.quantile(0.5), 32);
  EXPECT_EQ(lengths.quantile(1), 100);
  std::vector<std::pair<int64_t, int64_t>> counts;
  for (const Lengths::Bucket& bucket : lengths.histogram()) {
    counts.emplace_back(bucket.most, bucket.count);
  }
  EXPECT_EQ(counts,
            (std::vector<std::pair<int64_t, int64_t>>{{16, 1}, {32, 2}, {64, 1}, {128, 1}}));
  EXPECT_TRUE(Lengths().histogram().empty());
}

}  // namespace
}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of the reference: by row, kept in a file that is of one reference.
#include "train/reference_logprobs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/data/data_util.h"

namespace hocket::train {
namespace {

using Rows = std::vector<int64_t>;
using Numbers = std::vector<double>;

TEST(ReferenceLogprobs, AreFoundByRowInAnyBatch) {
  ReferenceLogprobs kept("model", 2);
  EXPECT_FALSE(kept.has("train", {7}));
  EXPECT_TRUE(kept.has("train", {-1}));
  kept.put("train", {7, -1, 3}, Numbers{1, 2, 9, 9, 3, 4});
  kept.put("train", {3, 5}, Numbers{30, 40, 5, 6});  // 3 is known
  EXPECT_EQ(kept.size("train"), 3);
  EXPECT_TRUE(kept.has("train", {5, 7}));
  EXPECT_FALSE(kept.has("train", {5, 6}));
  EXPECT_FALSE(kept.has("other", {5}));
  EXPECT_EQ(kept.of("train", {5, 3, -1, 7}), (Numbers{5, 6, 3, 4, 0, 0, 1, 2}));
}

TEST(ReferenceLogprobs, AreReadBackFromTheirFile) {
  ReferenceLogprobs kept("model", 1);
  kept.put("train", {2, 9}, Numbers{0.1, -1e-300});
  kept.put("train mismatched", {2}, Numbers{3});
  const std::string bytes = kept.to_bytes();
  ReferenceLogprobs again("model", 1);
  ASSERT_TRUE(again.take(bytes, "f"));
  EXPECT_EQ(again.of("train", {9, 2}), (Numbers{-1e-300, 0.1}));
  EXPECT_EQ(again.of("train mismatched", {2}), (Numbers{3}));
  EXPECT_EQ(again.to_bytes(), bytes);
}

TEST(ReferenceLogprobs, RefusedForAnotherReference) {
  ReferenceLogprobs kept("model", 1);
  kept.put("train", {2}, Numbers{1});
  for (auto [key, room] : {std::pair("other model", 1), std::pair("model", 2)}) {
    ReferenceLogprobs other(key, room);
    EXPECT_FALSE(other.take(kept.to_bytes(), "f"));
    EXPECT_EQ(other.size("train"), 0);
  }
}

TEST(ReferenceLogprobs, KeepTheTablesThatAreRead) {
  ReferenceLogprobs kept("model", 1);
  kept.put("train a", {2}, Numbers{1});
  kept.put("held out", {3}, Numbers{2});
  EXPECT_FALSE(kept.keep_only({"train a", "held out", "new"}));  // nothing is of other rows
  EXPECT_FALSE(kept.keep_only({"train a"}));                     // nothing is lacking
  EXPECT_EQ(kept.size("held out"), 0);
  EXPECT_TRUE(kept.keep_only({"train b"}));
  EXPECT_EQ(kept.size("train a"), 0);
}

TEST(ReferenceLogprobs, DamagedFilesAreRefused) {
  ReferenceLogprobs kept("model", 1);
  kept.put("train", {2, 5}, Numbers{1, 2});
  const std::string bytes = kept.to_bytes();
  for (size_t cut = 0; cut < bytes.size(); cut += 3) {
    ReferenceLogprobs again("model", 1);
    EXPECT_ERROR(again.take(bytes.substr(0, cut), "f"), "[f] is damaged");
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] ^= 1;
    ReferenceLogprobs again("model", 1);
    EXPECT_ERROR(again.take(changed, "f"), "[f] is damaged");
  }
}

}  // namespace
}  // namespace hocket::train

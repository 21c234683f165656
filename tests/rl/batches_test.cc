// SPDX-License-Identifier: Apache-2.0
// Samples packed into rows: each sees its prompt and its own tokens alone, those of a prompt share
// its places, and there are no more rows than they need.
#include "rl/batches.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "base/error.h"

namespace hocket::rl {
namespace {

/// Prompts with samples; tokens tell both apart.
struct Samples {
  std::deque<Prompt> prompts;
  std::deque<Sample> samples;
  std::vector<Item> items;

  void add(int64_t prompt_tokens, const std::vector<int64_t>& lengths) {
    Prompt& prompt = prompts.emplace_back();
    const auto number = static_cast<int32_t>(prompts.size());
    for (int64_t t = 0; t < prompt_tokens; ++t) {
      prompt.ids.push_back(1000 * number + static_cast<int32_t>(t));
    }
    for (const int64_t length : lengths) {
      Sample& sample = samples.emplace_back();
      for (int64_t t = 0; t < length; ++t) {
        sample.tokens.push_back(100000 * static_cast<int32_t>(samples.size()) +
                                static_cast<int32_t>(t));
      }
      items.push_back({&prompt, &sample, nullptr});
    }
  }
};

/// Tokens up to each place that attention shows it, by the positions of a row (ops/attention.cc).
std::vector<std::vector<int32_t>> contexts(const engine::Batch& batch) {
  std::vector<std::vector<int32_t>> seen;
  for (int64_t row = 0; row < batch.rows; ++row) {
    std::vector<int32_t> document;
    bool branched = false;
    std::vector<int32_t> now;
    for (int64_t i = 0; i < batch.seq_len; ++i) {
      const auto at = static_cast<size_t>(row * batch.seq_len + i);
      const int32_t position = batch.positions[at];
      if (position <= 0) {
        now.clear();
        document.clear();
        branched = false;
      } else if (position != std::ssize(now)) {
        branched = true;
        EXPECT_LE(position, std::ssize(document)) << "place " << at;
        now.assign(document.begin(), document.begin() + position);
      }
      now.push_back(batch.tokens[at]);
      if (!branched) {
        document = now;
      }
      seen.push_back(now);
    }
  }
  return seen;
}

void expect_whole(const Samples& all, const Packing& packing) {
  const engine::Batch batch = packing.batch();
  std::vector<double> places(batch.tokens.size());
  std::iota(places.begin(), places.end(), 0.0);
  const auto of_items = packing.by_item(places);
  const auto seen = contexts(batch);
  ASSERT_EQ(of_items.size(), all.items.size());
  for (size_t i = 0; i < all.items.size(); ++i) {
    std::vector<int32_t> context = all.items[i].prompt->ids;
    const std::vector<int32_t>& answer = all.items[i].sample->tokens;
    ASSERT_EQ(of_items[i].size(), answer.size());
    for (size_t t = 0; t < answer.size(); ++t) {
      const auto at = static_cast<size_t>(of_items[i][t]);
      EXPECT_EQ(seen[at], context) << "sample " << i << ", token " << t;
      EXPECT_EQ(batch.targets[at], answer[t]);
      context.push_back(answer[t]);
    }
  }
  EXPECT_EQ(std::count_if(batch.positions.begin(), batch.positions.end(),
                          [](int32_t position) { return position >= 0; }),
            packing.tokens());
}

TEST(Packing, SamplesOfAPromptShareItsPlaces) {
  Samples all;
  for (int64_t i = 0; i < 32; ++i) {
    std::vector<int64_t> lengths;
    for (int64_t k = 0; k < 16; ++k) {
      lengths.push_back(8 + (i + k) % 3);
    }
    all.add(11, lengths);
  }
  const Packing packing(all.items, {.seq_len = 256});
  expect_whole(all, packing);
  // 512 samples of 9 places, and a prompt's first 10 tokens about once in 16 of them.
  EXPECT_LE(packing.tokens(), 512 * 9 + 60 * 10);
  EXPECT_LE(packing.rows(), 22);
  const Packing apart(all.items, {.seq_len = 256, .shares = false});
  expect_whole(all, apart);
  EXPECT_GE(apart.tokens(), 512 * 19 - 32);
}

TEST(Packing, PromptsAndSamplesOfAllLengths) {
  Samples all;
  all.add(1, {1, 5, 3});
  all.add(40, {1, 60, 20, 20, 7});
  all.add(2, {63});
  all.add(3, {30, 30, 30, 30, 30, 1, 1, 1});
  all.add(60, {5, 4, 3, 2, 1});
  for (const bool shares : {false, true}) {
    for (const int64_t most : {1, 3}) {
      expect_whole(all, Packing(all.items, {.seq_len = 99, .most = most, .shares = shares}));
    }
  }
  Samples long_one;
  long_one.add(3, {4});
  EXPECT_NO_THROW(Packing(long_one.items, {.seq_len = 6}));
  EXPECT_THROW(Packing(long_one.items, {.seq_len = 5}), Error);
}

TEST(Packing, HasNoMoreRowsThanItNeeds) {
  Samples all;
  for (int64_t i = 0; i < 38; ++i) {
    all.add(20, {40, 30});
  }
  const Packing packing(all.items, {.seq_len = 100, .ranks = 2, .most = 64});
  EXPECT_EQ(packing.micro_batches(), 1);
  EXPECT_EQ(packing.rows(), 40);  // 38, in steps of an eighth for each of two ranks
  EXPECT_EQ(packing.sizes().micro_batch, 20);
  expect_whole(all, packing);
  const Packing fixed(all.items, {.seq_len = 100, .ranks = 2, .most = 64, .fewer = false});
  EXPECT_EQ(fixed.rows(), 64);
  EXPECT_EQ(fixed.sizes().micro_batch, 0);
}

}  // namespace
}  // namespace hocket::rl

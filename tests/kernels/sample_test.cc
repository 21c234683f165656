// SPDX-License-Identifier: Apache-2.0
// sample: frequencies of tokens drawn from a distribution made by hand, and every change of it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernel_util.h"
#include "ops/sample.h"

namespace hocket::test {
namespace {

using ops::Draw;
using ops::Setting;

/// A row to draw from.
struct Row {
  std::vector<double> logits;
  std::map<Setting, double> settings = {{Setting::temperature, 1}, {Setting::top_p, 1}};
  int64_t seed = 1, stream = 0, position = 0, given = -1;
  std::vector<int32_t> allowed;  ///< empty: all
  /// Token, count (-1: none), bias.
  std::vector<std::tuple<int32_t, int32_t, double>> changes;
};

/// Tokens 0 to 4 with these shares; token 3 stands in front of the likelier 4 on purpose.
Row shares() {
  Row row;
  for (double p : {0.3, 0.5, 0.1, 0.04, 0.06}) {
    row.logits.push_back(std::log(p) + 7);
  }
  return row;
}

struct Drawn {
  std::vector<int32_t> ids;
  std::vector<double> logprobs, sampled;
  std::vector<std::map<int32_t, double>> top;
};

Drawn draw(const std::vector<Row>& rows, int64_t top = 1, int64_t vocab = 0,
           DType dtype = DType::f32) {
  const auto n = std::ssize(rows), v = std::ssize(rows[0].logits);
  const int64_t words = (v + 31) / 32;
  Values logits = zeros({n, v}), settings = zeros({n, ops::kNumSettings});
  settings.fixed = true;
  Values draws = zeros({n, ops::kNumDraws}, DType::i64), mask = zeros({n, words}, DType::i32);
  Values ranges = zeros({n, 2}, DType::i32);
  std::vector<double> tokens, counts, biases;
  for (int64_t r = 0; r < n; ++r) {
    const Row& row = rows[static_cast<size_t>(r)];
    std::copy(row.logits.begin(), row.logits.end(), logits.v.begin() + r * v);
    for (const auto& [which, value] : row.settings) {
      settings[r * ops::kNumSettings + static_cast<int64_t>(which)] = value;
    }
    const int64_t at = r * ops::kNumDraws;
    draws[at] = static_cast<double>(row.seed);
    draws[at + 1] = static_cast<double>(row.stream);
    draws[at + 2] = static_cast<double>(row.position);
    draws[at + 3] = static_cast<double>(row.given);
    std::vector<uint32_t> bits(static_cast<size_t>(words));
    for (const int32_t token : row.allowed) {
      bits[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      settings[r * ops::kNumSettings + static_cast<int64_t>(Setting::masked)] = 1;
    }
    for (int64_t w = 0; w < words; ++w) {
      mask[r * words + w] = static_cast<double>(static_cast<int32_t>(bits[static_cast<size_t>(w)]));
    }
    ranges[2 * r] = static_cast<double>(tokens.size());
    for (const auto& [token, count, bias] : row.changes) {
      tokens.push_back(token);
      counts.push_back(count);
      biases.push_back(bias);
    }
    ranges[2 * r + 1] = static_cast<double>(tokens.size());
  }
  if (tokens.empty()) {
    tokens = {0};
    counts = {-1};
    biases = {0};
  }
  Values ids = zeros({n}, DType::i32), logprobs = zeros({n, 2});
  Values top_ids = zeros({n, top}, DType::i32), top_logprobs = zeros({n, top});
  logprobs.fixed = top_logprobs.fixed = true;
  const auto out = run({.op = "sample",
                        .attrs = {{"top", top}, {"vocab", vocab > 0 ? vocab : v}},
                        .in = {logits, settings, draws, mask, ranges, integers(tokens),
                               integers(counts), fixed(biases)},
                        .out = {ids, logprobs, top_ids, top_logprobs}},
                       dtype);
  Drawn drawn;
  for (int64_t r = 0; r < n; ++r) {
    drawn.ids.push_back(static_cast<int32_t>(out[0][r]));
    drawn.logprobs.push_back(out[1][2 * r]);
    drawn.sampled.push_back(out[1][2 * r + 1]);
    drawn.top.emplace_back();
    for (int64_t i = 0; i < top; ++i) {
      if (out[2][r * top + i] >= 0) {
        drawn.top.back()[static_cast<int32_t>(out[2][r * top + i])] = out[3][r * top + i];
      }
    }
  }
  return drawn;
}

constexpr int kDraws = 20000;

/// Share of every token that was drawn at all, and its reported log-probability.
void expect_shares(Row row, const std::map<int32_t, double>& want) {
  std::vector<Row> rows;
  for (int i = 0; i < kDraws; ++i) {
    row.position = i;
    rows.push_back(row);
  }
  const Drawn drawn = draw(rows);
  std::map<int32_t, double> got;
  for (size_t i = 0; i < rows.size(); ++i) {
    got[drawn.ids[i]] += 1.0 / kDraws;
    ASSERT_TRUE(want.contains(drawn.ids[i])) << drawn.ids[i];
    ASSERT_NEAR(drawn.sampled[i], std::log(want.at(drawn.ids[i])), 1e-5);
  }
  ASSERT_EQ(got.size(), want.size());
  // Five standard deviations of a share of 1/2.
  for (const auto& [token, share] : want) {
    EXPECT_NEAR(got.at(token), share, 2.5 / std::sqrt(kDraws));
  }
}

Row with(double temperature, int64_t top_k, double top_p, double min_p = 0) {
  Row row = shares();
  row.settings = {{Setting::temperature, temperature},
                  {Setting::top_k, static_cast<double>(top_k)},
                  {Setting::top_p, top_p},
                  {Setting::min_p, min_p}};
  return row;
}

TEST(Sample, DrawsAllTokensByTheirProbability) {
  expect_shares(with(1, 0, 1), {{0, 0.3}, {1, 0.5}, {2, 0.1}, {3, 0.04}, {4, 0.06}});
}

TEST(Sample, TemperatureIsAnExponent) {
  // Squares: 0.25, 0.09, 0.01, 0.0036, 0.0016 of 0.3552.
  expect_shares(with(0.5, 0, 1), {{1, 0.25 / 0.3552},
                                  {0, 0.09 / 0.3552},
                                  {2, 0.01 / 0.3552},
                                  {4, 0.0036 / 0.3552},
                                  {3, 0.0016 / 0.3552}});
}

TEST(Sample, TopPKeepsTheTokenThatReachesIt) {
  expect_shares(with(1, 0, 0.7), {{1, 0.5 / 0.8}, {0, 0.3 / 0.8}});
  expect_shares(with(1, 0, 0.85), {{1, 0.5 / 0.9}, {0, 0.3 / 0.9}, {2, 0.1 / 0.9}});
  expect_shares(with(1, 0, 0.4), {{1, 1}});
  expect_shares(with(1, 0, 0), {{1, 1}});  // one is always kept
}

TEST(Sample, TopPAppliesAfterTopK) {
  expect_shares(with(1, 3, 1), {{1, 0.5 / 0.9}, {0, 0.3 / 0.9}, {2, 0.1 / 0.9}});
  // The share applies after top-k: 0.6 x 0.9 = 0.54 is reached by the second.
  expect_shares(with(1, 3, 0.6), {{1, 0.5 / 0.8}, {0, 0.3 / 0.8}});
  expect_shares(with(1, 1, 1), {{1, 1}});
}

TEST(Sample, MinPIsAShareOfTheMostLikely) {
  expect_shares(with(1, 0, 1, 0.15), {{1, 0.5 / 0.9}, {0, 0.3 / 0.9}, {2, 0.1 / 0.9}});
  expect_shares(with(1, 0, 1, 1), {{1, 1}});
}

TEST(Sample, MinPComesAfterTopKAndTopP) {
  // top_k leaves 0.96; top_p 0.6 of it is 0.576, which the second token reaches; min_p keeps both.
  // min_p first would leave 0.8, of which the first token alone reaches 0.6.
  expect_shares(with(1, 4, 0.6, 0.5), {{1, 0.5 / 0.8}, {0, 0.3 / 0.8}});
  expect_shares(with(1, 0, 0.6, 0.5), {{1, 0.5 / 0.8}, {0, 0.3 / 0.8}});
  // It leaves out tokens that the other two keep.
  expect_shares(with(1, 4, 0.95, 0.5), {{1, 0.5 / 0.8}, {0, 0.3 / 0.8}});
  expect_shares(with(1, 4, 0.95, 1), {{1, 1}});
}

TEST(Sample, ZeroTemperatureTakesTheMostLikely) {
  EXPECT_EQ(draw({with(0, 0, 1)}).ids[0], 1);
  Row ties = with(0, 0, 1);
  ties.logits = {1, 5, 2, 5};
  EXPECT_EQ(draw({ties}).ids[0], 1);  // the lowest of equals
}

TEST(Sample, SeedStreamAndPositionDecide) {
  int same_seed = 0, same_stream = 0;
  for (int64_t i = 0; i < 200; ++i) {
    Row row = with(1, 0, 1), seed = row, stream = row;
    row.position = seed.position = stream.position = i;
    seed.seed = 2;
    stream.stream = 1;
    const Drawn drawn = draw({row, seed, stream, row});
    EXPECT_EQ(drawn.ids[0], drawn.ids[3]);
    EXPECT_EQ(drawn.ids[0], draw({row}).ids[0]);  // in any batch
    same_seed += drawn.ids[0] == drawn.ids[1];
    same_stream += drawn.ids[0] == drawn.ids[2];
  }
  EXPECT_LT(same_seed, 120);  // 200 x (0.09 + 0.25 + 0.01 + ...) = 71
  EXPECT_LT(same_stream, 120);
}

TEST(Sample, BiasAndPenaltiesComeBeforeTemperature) {
  Row row = with(0, 0, 1);
  row.logits = {2.0, 1.5, -1.0, -1.2};
  const auto id = [&](std::vector<std::tuple<int32_t, int32_t, double>> changes,
                      std::map<Setting, double> settings) {
    Row changed = row;
    changed.changes = std::move(changes);
    changed.settings.insert(settings.begin(), settings.end());
    return draw({changed}).ids[0];
  };
  EXPECT_EQ(id({{1, -1, 0.6}}, {}), 1);
  EXPECT_EQ(id({{1, -1, 0.4}}, {}), 0);
  // A token of the prompt alone (count 0) is penalised by repetition, not by presence or frequency.
  EXPECT_EQ(id({{0, 0, 0}}, {{Setting::repetition_penalty, 2}}), 1);
  EXPECT_EQ(id({{0, 0, 0}}, {{Setting::presence_penalty, 2}}), 0);
  EXPECT_EQ(id({{0, 1, 0}}, {{Setting::presence_penalty, 0.6}}), 1);
  EXPECT_EQ(id({{0, 2, 0}}, {{Setting::frequency_penalty, 0.3}}), 1);
  EXPECT_EQ(id({{0, 1, 0}}, {{Setting::frequency_penalty, 0.3}}), 0);
  // Negative logits are multiplied.
  row.logits = {-1.0, -1.2};
  EXPECT_EQ(id({{0, 0, 0}}, {{Setting::repetition_penalty, 1.3}}), 1);
  EXPECT_EQ(id({{0, -1, 0}}, {{Setting::repetition_penalty, 1.3}}), 0);
}

TEST(Sample, DrawsOnlyAllowedTokens) {
  Row row = with(1, 0, 1);
  row.allowed = {2, 4};
  expect_shares(row, {{2, 0.1 / 0.16}, {4, 0.06 / 0.16}});
  // A word per 32 tokens.
  Row wide = with(0, 0, 1);
  wide.logits.assign(70, 0.5);
  wide.allowed = {31, 64, 69};
  EXPECT_EQ(draw({wide}).ids[0], 31);
  wide.allowed = {64};
  EXPECT_EQ(draw({wide}).ids[0], 64);
}

TEST(Sample, ReportsTheModelsOwnLogprobs) {
  for_both([](DType dtype, double) {
    Row row = with(0, 1, 0.1);
    row.settings[Setting::alternatives] = 3;
    row.changes = {{4, 1, 50}};
    Row given = row;
    given.given = 2;
    given.settings[Setting::alternatives] = 0;
    const Drawn drawn = draw({row, given}, 4, 0, dtype);
    EXPECT_EQ(drawn.ids, (std::vector<int32_t>{4, 2}));
    EXPECT_NEAR(drawn.logprobs[0], std::log(0.06), 1e-5);
    EXPECT_EQ(drawn.sampled[0], 0);
    EXPECT_NEAR(drawn.logprobs[1], std::log(0.1), 1e-5);
    EXPECT_EQ(drawn.sampled[1], 3);  // its rank
    ASSERT_EQ(drawn.top[0].size(), 3u);
    EXPECT_NEAR(drawn.top[0].at(1), std::log(0.5), 1e-5);
    EXPECT_NEAR(drawn.top[0].at(2), std::log(0.1), 1e-5);
    EXPECT_TRUE(drawn.top[1].empty());
  });
}

TEST(Sample, RanksGivenTokens) {
  for_both([](DType dtype, double) {
    Row row = with(1, 0, 1);
    row.logits = {2, -1, 3, 2, 2, 9};
    std::vector<Row> rows;
    for (row.given = 0; row.given < 5; ++row.given) {
      rows.push_back(row);
    }
    // Ties go by id, as among alternatives; 5 is no token.
    EXPECT_EQ(draw(rows, 1, 5, dtype).sampled, (std::vector<double>{2, 5, 1, 3, 4}));
  });
}

TEST(Sample, DrawsNoIdBeyondTheTokens) {
  Row row = with(0, 0, 1);
  row.logits = {1, 2, 3, 9};
  row.settings[Setting::alternatives] = 4;
  const Drawn drawn = draw({row}, 4, 3);
  EXPECT_EQ(drawn.ids[0], 2);
  EXPECT_FALSE(drawn.top[0].contains(3));
  // The model's probability counts all of its ids.
  EXPECT_LT(drawn.logprobs[0], -5);
}

TEST(Sample, RefusesEmptyMasksAndUnknownIds) {
  Row row = with(1, 0, 1);
  row.settings[Setting::masked] = 1;  // and nothing is allowed
  EXPECT_THROW(draw({row}), std::runtime_error);
  row = with(1, 0, 1);
  row.given = 5;
  EXPECT_THROW(draw({row}), std::runtime_error);
  row = with(1, 0, 1);
  row.changes = {{5, 0, 1}};
  EXPECT_THROW(draw({row}), std::runtime_error);
}

TEST(Sample, RowsWithoutFiniteLogitsAreReportedAndOthersDrawn) {
  Row infinite = shares(), not_a_number = shares();
  infinite.logits[2] = INFINITY;
  not_a_number.logits[4] = NAN;
  not_a_number.given = 1;
  for (Row* row : {&infinite, &not_a_number}) {
    row->settings[Setting::alternatives] = 1;
  }
  Row drawn_from = shares();
  drawn_from.settings[Setting::temperature] = 0;
  const Drawn drawn = draw({infinite, drawn_from, not_a_number});
  EXPECT_EQ(drawn.ids, (std::vector<int32_t>{-1, 1, -1}));
  EXPECT_EQ(drawn.logprobs[0], INFINITY);
  EXPECT_EQ(drawn.sampled[0], 2);
  EXPECT_TRUE(std::isnan(drawn.logprobs[2]));
  EXPECT_EQ(drawn.sampled[2], 4);
  EXPECT_TRUE(drawn.top[0].empty() && drawn.top[2].empty());
}

}  // namespace
}  // namespace hocket::test

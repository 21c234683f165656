// SPDX-License-Identifier: Apache-2.0
// Sampling: frequencies of tokens sampled from a distribution made by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "train/sample.h"

namespace hocket::train {
namespace {

/// Tokens 0 to 4 with these shares; token 3 stands in front of the likelier 4 on purpose.
std::vector<double> shares() {
  std::vector<double> logits;
  for (double p : {0.3, 0.5, 0.1, 0.04, 0.06}) {
    logits.push_back(std::log(p) + 7);
  }
  return logits;
}

constexpr int kDraws = 20000;

/// Share of every token that was drawn at all.
std::map<int32_t, double> drawn(const GenerateOptions& options) {
  std::map<int32_t, double> share;
  for (uint64_t i = 0; i < kDraws; ++i) {
    share[draw(shares(), options, i)] += 1.0 / kDraws;
  }
  return share;
}

GenerateOptions with(double temperature, int64_t top_k, double top_p) {
  GenerateOptions o;
  o.temperature = temperature;
  o.top_k = top_k;
  o.top_p = top_p;
  return o;
}

void expect_shares(const GenerateOptions& options, const std::map<int32_t, double>& want) {
  const auto got = drawn(options);
  ASSERT_EQ(got.size(), want.size());
  // Five standard deviations of a share of 1/2.
  for (const auto& [token, share] : want) {
    EXPECT_NEAR(got.at(token), share, 2.5 / std::sqrt(kDraws));
  }
}

TEST(Draw, AllTokensByTheirShare) {
  expect_shares(with(1, 0, 1), {{0, 0.3}, {1, 0.5}, {2, 0.1}, {3, 0.04}, {4, 0.06}});
}

TEST(Draw, TemperatureIsAnExponent) {
  // Squares: 0.25, 0.09, 0.01, 0.0036, 0.0016 of 0.3552.
  expect_shares(with(0.5, 0, 1), {{1, 0.25 / 0.3552},
                                  {0, 0.09 / 0.3552},
                                  {2, 0.01 / 0.3552},
                                  {4, 0.0036 / 0.3552},
                                  {3, 0.0016 / 0.3552}});
}

TEST(Draw, TopPKeepsTheTokenThatReachesIt) {
  expect_shares(with(1, 0, 0.7), {{1, 0.5 / 0.8}, {0, 0.3 / 0.8}});
  expect_shares(with(1, 0, 0.85), {{1, 0.5 / 0.9}, {0, 0.3 / 0.9}, {2, 0.1 / 0.9}});
  expect_shares(with(1, 0, 0.4), {{1, 1}});
  expect_shares(with(1, 0, 0), {{1, 1}});  // one is always kept
}

TEST(Draw, TopKThenTopP) {
  expect_shares(with(1, 3, 1), {{1, 0.5 / 0.9}, {0, 0.3 / 0.9}, {2, 0.1 / 0.9}});
  // The share applies after top-k: 0.6 x 0.9 = 0.54 is reached by the second.
  expect_shares(with(1, 3, 0.6), {{1, 0.5 / 0.8}, {0, 0.3 / 0.8}});
  expect_shares(with(1, 1, 1), {{1, 1}});
}

TEST(Draw, ZeroTemperatureTakesTheMostLikely) {
  EXPECT_EQ(draw(shares(), with(0, 0, 1), 9), 1);
  EXPECT_EQ(draw({1, 5, 2, 5}, with(0, 0, 1), 9), 1);  // the lowest of equals
}

TEST(Draw, SeedAndPositionDecide) {
  GenerateOptions other = with(1, 0, 1);
  other.seed = 2;
  int same = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(draw(shares(), with(1, 0, 1), i), draw(shares(), with(1, 0, 1), i));
    same += draw(shares(), with(1, 0, 1), i) == draw(shares(), other, i);
  }
  EXPECT_LT(same, 120);  // 200 x (0.09 + 0.25 + 0.01 + ...) = 71
}

}  // namespace
}  // namespace hocket::train

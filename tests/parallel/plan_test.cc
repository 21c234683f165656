// SPDX-License-Identifier: Apache-2.0
// Plans: combinations that do not fit, or are too large to build, are refused by key.
#include "parallel/plan.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace hocket::parallel {
namespace {

/// Returns the error of a plan for a model of 4 layers and 8 experts, or "".
std::string refused(const std::function<void(Plan&)>& change) {
  Plan plan;
  change(plan);
  try {
    plan.validate(4, 8);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

void expect_refused(const std::function<void(Plan&)>& change, const std::string& part) {
  const std::string text = refused(change);
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(Plan, ErrorsNameTheKey) {
  EXPECT_EQ(refused([](Plan&) {}), "");
  EXPECT_EQ(refused([](Plan& p) { p.pp = 4, p.dp = 8, p.ep = 8, p.pp_layers = {0, 1, 1, 2}; }), "");
  expect_refused([](Plan& p) { p.dp = 4, p.ep = 3; }, "plan.ep is 3; expected a divisor of");
  EXPECT_EQ(refused([](Plan& p) { p.dp = p.ep = 3; }), "");
  expect_refused([](Plan& p) { p.dp = p.ep = 9; }, "expected at most the model's 8 experts");
  expect_refused([](Plan& p) { p.pp = 5; }, "plan.pp is 5 but the model has 4 layers");
  EXPECT_EQ(refused([](Plan& p) { p.pp = 2, p.pp_chunks = 2, p.pp_layers = {1, 0, 1, 2}; }), "");
  // The embedding and the head may be stages of their own, also of a model with fewer layers.
  EXPECT_EQ(refused([](Plan& p) { p.pp = 6, p.pp_layers = {0, 1, 1, 1, 1, 0}; }), "");
  expect_refused([](Plan& p) { p.pp = 2, p.pp_chunks = 3; },
                 "plan.pp x plan.pp_chunks is 6 but the model has 4 layers");
  expect_refused(
      [](Plan& p) {
        p.pp = 2, p.pp_chunks = 2, p.pp_layers = {2, 2};
      },
      "2 entries; expected plan.pp x plan.pp_chunks = 4");
  expect_refused([](Plan& p) { p.pp_chunks = 0; }, "plan.pp_chunks is 0");
  expect_refused([](Plan& p) { p.pp = 2, p.pp_layers = {1, 2}; }, "plan.pp_layers sums to 3");
}

TEST(Plan, AModelWithoutLayersIsOneStage) {
  Plan one, two;
  two.pp = 2;
  EXPECT_NO_THROW(one.validate(0, 0));
  EXPECT_THROW(two.validate(0, 0), Error);
  EXPECT_THROW(two.validate(1, 0), Error);
}

TEST(Plan, SizesAreBounded) {
  EXPECT_EQ(refused([](Plan& p) { p.num_micro_batches = 65536; }), "");
  expect_refused([](Plan& p) { p.num_micro_batches = 65537; },
                 "65537 micro-batches; expected at most 65536 with 4 layers");
  EXPECT_EQ(refused([](Plan& p) { p.dp = 1024; }), "");
  EXPECT_EQ(refused([](Plan& p) { p.dp = 65536, p.ranks_per_node = 8; }), "");
  expect_refused([](Plan& p) { p.pp = 2, p.dp = 1024; }, "2048 ranks are on one node");
  expect_refused([](Plan& p) { p.dp = 4096, p.ranks_per_node = 2048; },
                 "2048 ranks are on one node");
}

}  // namespace
}  // namespace hocket::parallel

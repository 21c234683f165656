// SPDX-License-Identifier: Apache-2.0
// Any plan gives the single-device result: random models and plans against one rank running the
// same global micro-batches, in fp64; and the cases that must be bit-identical, in fp32.
#include <gtest/gtest.h>

#include "plan_util.h"

namespace hocket::test {
namespace {

constexpr double kTolerance = 1e-10;  // fp64: only the order of sums differs

TEST(PlanEquality, SixtyRandomPlansEqualOneRank) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Case c = random_case(seed, 8, "f64");
    SCOPED_TRACE(c.name + "\n" + c.text);
    Outcome one, many;
    ASSERT_NO_THROW(one = train(c, true, 3));
    ASSERT_NO_THROW(many = train(c, false, 3, true));
    for (int s = 0; s < 3; ++s) {
      EXPECT_NEAR(many.losses[s], one.losses[s], kTolerance * std::abs(one.losses[s]));
      EXPECT_NEAR(many.norms[s], one.norms[s], kTolerance * one.norms[s]);
    }
    ASSERT_EQ(many.grads.size(), one.grads.size());
    for (auto& [name, grad] : one.grads) {
      EXPECT_LE(relative_l2(many.grads[name], grad), kTolerance) << name;
    }
    ASSERT_EQ(many.params.size(), one.params.size());
    for (auto& [name, param] : one.params) {
      EXPECT_LE(relative_l2(many.params[name], param), kTolerance) << name;
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace hocket::test

// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// ctest: timeout=900
// The shipped small models in bf16 under plans of every axis, beside one rank: the loss of a step
// and the logits, with the routing of the one rank. HOCKET_PRECISION_TOKENS: of a sequence.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "plan_util.h"

namespace hocket::test {
namespace {

struct Plan {
  const char* name;
  const char* keys;
};
constexpr Plan kDense[] = {{"dp 2", "dp: 2, micro_batch: 2"},
                           {"tp 2", "tp: 2, micro_batch: 4"},
                           {"pp 2", "pp: 2, micro_batch: 4"},
                           {"cp 2", "cp: 2, micro_batch: 4"},
                           {"tp 2 x dp 2", "tp: 2, dp: 2, micro_batch: 2"}};
constexpr Plan kExperts[] = {{"ep 2", "dp: 2, ep: 2, micro_batch: 2"},
                             {"ep 2 x tp 2", "dp: 2, ep: 2, tp: 2, micro_batch: 2"}};

Case case_of(const std::string& model, const std::string& plan) {
  const char* const folder = std::getenv("HOCKET_SOURCE_DIR");
  Case c;
  c.seed = 7;
  c.name = model + ", " + plan;
  c.text = fmt::format(
      "model: {{path: {}/configs/models/{}, dtype: bf16, init: random}}\n"
      "train: {{seq_len: {}, global_batch: 4, warmup_steps: 0, lr: 0.001}}\n"
      "plan: {{{}, threads_per_rank: 1, timeout_s: 120}}\n",
      folder ? folder : ".", model, from_environment("HOCKET_PRECISION_TOKENS", fewer(128)), plan);
  return c;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) {
    most = std::max(most, std::abs(value));
  }
  return most;
}
double farthest(const std::vector<double>& left, const std::vector<double>& right) {
  double most = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    most = std::max(most, std::abs(left[i] - right[i]));
  }
  return most;
}

void compare(const std::string& model, std::span<const Plan> plans) {
  Case alone = case_of(model, "micro_batch: 4");
  alone.keep_routes = true;
  const Outcome one = train(alone, {.on_one_rank = true, .with_grads = false});
  const Logits scores = logits_on_one_rank(alone);
  const double top = largest(scores.values);
  ASSERT_GT(top, 0.1);
  for (const Plan& plan : plans) {
    SCOPED_TRACE(plan.name);
    Case c = case_of(model, plan.keys);
    c.routes = one.routes;
    const Outcome many = train(c, {.with_grads = false});
    const double loss = std::abs(many.losses[0] - one.losses[0]);
    EXPECT_LE(loss, 5e-3);
    c.routes = scores.routes;
    const Logits theirs = logits(c);
    ASSERT_EQ(theirs.values.size(), scores.values.size());
    const double apart = farthest(theirs.values, scores.values) / top;
    EXPECT_LE(apart, 0x1p-6);
    std::cout << fmt::format(
        "{} {}: loss {:.5f}, apart {:.1e}; logits up to {:.2f}, apart 2^{:.2f} of it\n", model,
        plan.name, one.losses[0], loss, top, std::log2(apart));
  }
}

TEST(ShippedPrecision, ADenseModelIsTheSameUnderPlans) { compare("box-dense", kDense); }

TEST(ShippedPrecision, AnMoeModelIsTheSameUnderPlans) {
  if (is_long()) {
    compare("quickstart", kDense);
  }
  compare("quickstart", kExperts);
}

}  // namespace
}  // namespace hocket::test

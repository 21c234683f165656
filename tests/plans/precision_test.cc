// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// ctest: timeout=600
// Training in bf16 and f16: under every plan as on one rank, and on one rank as in f32.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <iostream>

#include "plan_util.h"

namespace hocket::test::precision_test {
namespace {

/// Returns the relative distance between the gradients of two runs, over all tensors.
double gradient_error(const Outcome& a, const Outcome& b) {
  double squares = 0, norms = 0;
  for (const auto& [name, values] : b.grads) {
    squares += std::pow(distance(a.grads.at(name), values), 2);
    norms += std::pow(distance(values, std::vector<double>(values.size())), 2);
  }
  return std::sqrt(squares / norms);
}

/// Tokens go to the experts that the one rank chose. The parts of a sum that lie on several ranks
/// are rounded each: gradients differ by some roundings, the first loss by no more than 5e-3.
void compare_plans(uint64_t plans, const std::vector<std::string>& keys) {
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  plans = from_environment("HOCKET_PLANS", fewer(plans));
  std::cout << "HOCKET_SEED=" << first << " HOCKET_PLANS=" << plans << "\n";
  double worst_loss = 0, worst_gradient = 0;
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    const bool half = seed % 3 == 0;
    Case c = random_case(seed, 8, half ? "f16" : "bf16");
    SCOPED_TRACE(c.name + "\n" + c.text);
    Outcome one, many;
    c.keep_routes = true;
    ASSERT_NO_THROW(one = train(c, {.on_one_rank = true, .steps = 3, .overrides = keys}));
    c.keep_routes = false;
    c.routes = one.routes;
    ASSERT_NO_THROW(many = train(c, {.steps = 3, .poison = true, .overrides = keys}));
    ASSERT_EQ(many.losses.size(), one.losses.size());
    for (size_t step = 0; step < one.losses.size(); ++step) {
      const double apart = std::abs(many.losses[step] - one.losses[step]);
      worst_loss = std::max(worst_loss, apart);
      // AdamW makes a whole step of a gradient that is rounding alone.
      EXPECT_LE(apart, step == 0 ? 5e-3 : 1e-2) << "step " << step << ", " << one.losses[step];
      EXPECT_NEAR(many.norms[step] / one.norms[step], 1, 0.03) << "the norm of step " << step;
    }
    const double apart = gradient_error(many, one);
    worst_gradient = std::max(worst_gradient, apart);
    EXPECT_LE(apart, half ? 0x1p-8 : 0x1p-5);
  }
  std::cout << "losses differ by " << worst_loss << ", gradients by " << worst_gradient << "\n";
}

TEST(Precision, RandomPlansEqualOneRank) { compare_plans(40, {}); }

TEST(Precision, RandomPlansEqualOneRankWithGradientsOfTheModelsType) {
  compare_plans(20, {"train.grad_dtype=model"});
}

/// A dense model and one of experts.
Case small_case(bool moe, const std::string& dtype) {
  Case c;
  c.seed = 3;
  c.name = moe ? "experts" : "dense";
  c.text = "model:\n  dtype: " + dtype +
           "\n  config: {model_type: " + (moe ? "qwen3_moe" : "llama") +
           ", vocab_size: 64, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 4, "
           "num_key_value_heads: 2, head_dim: 4, intermediate_size: 32, rms_norm_eps: 1.0e-6, "
           "rope_theta: 10000.0, tie_word_embeddings: false, max_position_embeddings: 64, "
           "hidden_act: silu" +
           (moe ? ", num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8, "
                  "norm_topk_prob: true, router_aux_loss_coef: 0.05, decoder_sparse_step: 1, "
                  "mlp_only_layers: []"
                : "") +
           "}\ntrain: {seq_len: 16, global_batch: 4, warmup_steps: 0, lr: 0.003}\n"
           "plan: {micro_batch: 2, threads_per_rank: 1, timeout_s: 60}\n";
  return c;
}

TEST(Precision, BeginsWithTheNumbersOfF32Rounded) {
  const Outcome wide =
      train(small_case(true, "f32"), {.on_one_rank = true, .steps = 0, .with_grads = false});
  for (const auto& [dtype, unit] : {std::pair{"bf16", 0x1p-8}, std::pair{"f16", 0x1p-11}}) {
    const Outcome narrow =
        train(small_case(true, dtype), {.on_one_rank = true, .steps = 0, .with_grads = false});
    for (const auto& [name, values] : wide.params) {
      const std::vector<double>& rounded = narrow.params.at(name);
      ASSERT_EQ(rounded.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_LE(std::abs(rounded[i] - values[i]), std::abs(values[i]) * unit + 0x1p-25) << name;
      }
    }
  }
}

TEST(Precision, TrainsAsInF32) {
  for (const bool moe : {false, true}) {
    SCOPED_TRACE(moe ? "experts" : "dense");
    const Outcome wide =
        train(small_case(moe, "f32"), {.on_one_rank = true, .steps = 20, .with_grads = false});
    using Way = std::pair<const char*, const char*>;
    for (const auto& [dtype, gradients] :
         {Way{"bf16", "f32"}, Way{"f16", "f32"}, Way{"bf16", "model"}, Way{"f16", "model"}}) {
      SCOPED_TRACE(fmt::format("{}, gradients {}", dtype, gradients));
      const std::string keys = fmt::format("train.grad_dtype={}", gradients);
      const Outcome narrow =
          train(small_case(moe, dtype),
                {.on_one_rank = true, .steps = 20, .overrides = {keys}, .with_grads = false});
      for (size_t step = 0; step < wide.losses.size(); ++step) {
        EXPECT_NEAR(narrow.losses[step] / wide.losses[step], 1, 0.01) << "step " << step;
      }
    }
  }
}

/// Products of 8 bits lose more: the run stays near, and is no worse under a plan.
TEST(Precision, ProductsOf8BitsRun) {
  const std::vector<std::string> float8 = {"model.float8=true"};
  Case c = small_case(false, "bf16");
  const Outcome plain = train(c, {.on_one_rank = true, .steps = 3, .with_grads = false});
  const Outcome one =
      train(c, {.on_one_rank = true, .steps = 3, .overrides = float8, .with_grads = false});
  const Outcome many =
      train(c, {.steps = 3,
                .poison = true,
                .overrides = {"model.float8=true", "plan.tp=2", "plan.dp=2", "plan.micro_batch=1"},
                .with_grads = false});
  for (size_t step = 0; step < plain.losses.size(); ++step) {
    EXPECT_NEAR(one.losses[step] / plain.losses[step], 1, 0.02);
    EXPECT_NEAR(many.losses[step] / one.losses[step], 1, 0.02);
  }
  EXPECT_NE(one.losses, plain.losses);
}

}  // namespace
}  // namespace hocket::test::precision_test

// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// ctest: timeout=900
// Any plan gives the single-device result: random models and plans against one rank running the
// same global micro-batches, in fp64; and the cases that must be bit-identical, in fp32.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <random>
#include <set>

#include "base/file.h"
#include "check/check.h"
#include "models/config.h"
#include "plan_util.h"
#include "tests/check/check_util.h"

namespace hocket::test::equality_test {
namespace {

const uint64_t kPlans = fewer(is_long() ? 300 : 60);
const char* const kLonger = is_long() ? "\n" : "; HOCKET_LONG=1 tries 300\n";

/// HOCKET_PLANS=2000 HOCKET_SEED=S: how many plans, and which; of up to 8 ranks, every fourth of up
/// to 16.
TEST(PlanEquality, RandomPlansEqualOneRank) {
  std::map<std::string, int> drawn;
  const uint64_t plans = from_environment("HOCKET_PLANS", kPlans);
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  std::cout << "HOCKET_SEED=" << first << " HOCKET_PLANS=" << plans << kLonger;
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    Case c = random_case(seed, seed % 4 == 0 ? 16 : 8, "f64");
    ++drawn[engine::parse_run(c.text, c.name, {}).plan.pp_schedule];
    SCOPED_TRACE(c.name + "\n" + c.text);
    Outcome one, many;
    ASSERT_NO_THROW(one = train(c, {.on_one_rank = true, .steps = 3}));
    ASSERT_NO_THROW(many = train(c, {.steps = 3, .poison = true}));
    ASSERT_EQ(difference(many, one), "");
  }
  for (const parallel::BuiltIn& built_in : parallel::built_in_schedules()) {
    EXPECT_GE(drawn[built_in.name], plans < 300 ? 0 : static_cast<int>(plans / 60))
        << built_in.name;
  }
}

TEST(PlanEquality, EveryFamilyIsDrawn) {
  std::set<std::string> drawn;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    const Case c = random_case(seed, 8, "f64");
    drawn.insert(engine::parse_run(c.text, c.name, {}).model.family);
  }
  for (const std::string& family : models::families()) {
    EXPECT_TRUE(drawn.contains(family)) << family;
  }
}

/// Compares in fp32, where rounding would send some tokens to other experts: all ranks take the
/// single rank's choices, token by token.
TEST(PlanEquality, RandomPlansEqualOneRankInFp32) {
  const uint64_t plans = from_environment("HOCKET_PLANS", kPlans / 5);
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  std::cout << "HOCKET_SEED=" << first << " HOCKET_PLANS=" << plans << kLonger;
  uint64_t routed = 0;
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    Case c = random_case(seed, seed % 4 == 0 ? 16 : 8, "f32");
    SCOPED_TRACE(c.name + "\n" + c.text);
    Outcome one, many;
    c.keep_routes = true;
    ASSERT_NO_THROW(one = train(c, {.on_one_rank = true, .steps = 3}));
    c.keep_routes = false;
    c.routes = one.routes;
    ASSERT_NO_THROW(many = train(c, {.steps = 3, .poison = true}));
    ASSERT_EQ(difference(many, one, 1e-4), "");
    routed += one.routes->front().empty() ? 0 : 1;
  }
  EXPECT_GE(routed, plans / 2);
}

/// Only checks, without running: the same plans with lossy gradient codecs, in bf16 with or without
/// 8-bit products, and as evaluations.
TEST(PlanEquality, NoRandomPlanIsRefused) {
  if (is_sanitized()) {
    GTEST_SKIP() << "the tests above lower such plans, and check them";
  }
  const uint64_t plans = from_environment("HOCKET_PLANS", kPlans);
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  std::cout << "HOCKET_SEED=" << first << " HOCKET_PLANS=" << plans << kLonger;
  uint64_t lossy = 0;
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    const Case c = random_case(seed, seed % 4 == 0 ? 16 : 8, seed % 3 == 0 ? "f32" : "bf16");
    SCOPED_TRACE(c.name + "\n" + c.text);
    const std::string float8 = seed % 3 == 2 ? "true" : "false";
    for (const char* name : {"train", "evaluate"}) {
      engine::Compiled compiled;
      ASSERT_NO_THROW(
          compiled = engine::compile(engine::spec_named(
              engine::parse_run(c.text, c.name, {"plan.grad_codec=int8", "model.float8=" + float8}),
              name, c.name)));
      const check::Verdict whole = check::check(compiled.program, compiled.reference);
      EXPECT_TRUE(whole.ok()) << to_text(whole);
      lossy += whole.losses.empty() ? 0 : 1;
    }
  }
  EXPECT_GE(lossy, plans / 8);
}

/// With documents of one token, the gradients of queries and keys are the rounding error of 0. They
/// may differ from one rank's by the effect of the parameters' last bits, and no more.
TEST(PlanEquality, CancellingGradientsMatchWithinInputRounding) {
  if (has_address_sanitizer()) {
    GTEST_SKIP() << "without the optimizations of a release these gradients round to 0 exactly";
  }
  Case c;
  c.name = "one token";
  c.text =
      "model:\n  dtype: f64\n  config: {model_type: llama, vocab_size: 24, hidden_size: 8, "
      "num_hidden_layers: 2, num_attention_heads: 3, num_key_value_heads: 1, head_dim: 6, "
      "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
      "false, "
      "max_position_embeddings: 64, hidden_act: silu}\n"
      "train: {seq_len: 1, global_batch: 4, warmup_steps: 0, lr: 0.01}\n"
      "plan: {tp: 3, micro_batch: 4, threads_per_rank: 1, timeout_s: 60}\n";
  const Outcome one = train(c, {.on_one_rank = true, .with_grads = false});
  const Outcome many = train(c, {.poison = true, .with_grads = false});
  EXPECT_EQ(difference(many, one), "");
  const std::string layer = "exp_avg.model.layers.0.self_attn.";
  const std::string key = layer + "k_proj.weight", value = layer + "v_proj.weight";
  EXPECT_GT(relative_l2(many.params.at(key), one.params.at(key)), 1e-10) << "nothing cancels";
  const std::vector<double>& values = one.params.at(value);
  const double size = distance(values, std::vector<double>(values.size()));
  for (const auto& [name, change] : {std::pair{key, 1e-12}, std::pair{value, 2e-10}}) {
    Outcome wrong = many;
    wrong.params[name][0] += change * size;
    EXPECT_EQ(difference(wrong, one), name);
  }
}

/// Experts that the ranks of `ep` do not divide: the first ranks have one more, in classes of their
/// own.
TEST(PlanEquality, ExpertsNeedNotDivide) {
  const uint64_t wanted = sampled(20);
  uint64_t tried = 0;
  for (uint64_t seed = 1; seed <= 400 && tried < wanted; ++seed) {
    Case c = random_case(seed, 8, "f64");
    const size_t at = c.text.find("num_experts: ");
    const parallel::Plan plan = engine::parse_run(c.text, c.name, {}).plan;
    const int64_t ep = plan.ep;
    if (at == std::string::npos || ep == 1 || plan.ep_over().dp != ep) continue;
    ++tried;
    const size_t end = c.text.find(',', at);
    c.text.replace(at, end - at,
                   fmt::format("num_experts: {}", ep * 2 + (tried % 2 == 1 ? 1 : ep - 1)));
    const size_t inner = c.text.find("ep_inner: ");
    c.text.replace(inner, c.text.find(',', inner) - inner, "ep_inner: 1");
    SCOPED_TRACE(c.name + "\n" + c.text);
    const engine::Compiled compiled = engine::compile(engine::parse_run(c.text, c.name, {}));
    const check::Verdict verdict = check::check(compiled.program, compiled.reference);
    ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    EXPECT_GT(compiled.program.classes.size(), 1);
    Outcome one, many;
    ASSERT_NO_THROW(one = train(c, {.on_one_rank = true, .steps = 2}));
    ASSERT_NO_THROW(many = train(c, {.steps = 2, .poison = true}));
    ASSERT_EQ(difference(many, one), "");
  }
  EXPECT_EQ(tried, wanted);
}

/// The run does not depend on the split into classes: cut along any axis, it gives the same bits.
TEST(PlanEquality, ClassesMayBeCut) {
  int splits = 0;
  for (uint64_t seed = 1; seed <= fewer(30); ++seed) {
    const Case c = random_case(seed, 8, "f32");
    SCOPED_TRACE(c.name + "\n" + c.text);
    const Outcome whole = train(c, {.steps = 2, .with_grads = false});
    const Outcome cut =
        train(c, {.steps = 2, .with_grads = false, .rewrite = [&](program::Program& p) {
                    std::mt19937_64 rng(seed);
                    splits += check::test::split_classes(p, rng);
                  }});
    EXPECT_EQ(cut.losses, whole.losses);
    EXPECT_EQ(cut.norms, whole.norms);
    EXPECT_EQ(cut.params, whole.params);
  }
  EXPECT_GT(splits, static_cast<int>(fewer(30) / 3));
}

/// Two roles with one step each, side by side: the second changes nothing for the first.
TEST(PlanEquality, RolesRunSideBySide) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const Case c = random_case(seed, 4, "f32");
    SCOPED_TRACE(c.name + "\n" + c.text);
    const Outcome alone = train(c, {.steps = 2, .with_grads = false});
    const Outcome both =
        train(c, {.steps = 2, .with_grads = false, .rewrite = check::test::twin_role});
    EXPECT_EQ(both.losses, alone.losses);
    EXPECT_EQ(both.params, alone.params);
  }
}

/// Embedding and head in stages of their own, tied or not, under every schedule; of two layers on
/// four ranks.
TEST(PlanEquality, StagesMayHaveNoLayers) {
  for (const parallel::BuiltIn& built_in : parallel::built_in_schedules()) {
    for (const bool tied : {false, true}) {
      const bool two = built_in.chunks == 2;
      Case c;
      c.seed = 7;
      c.name = fmt::format("{} tied {}", built_in.name, tied);
      c.text = fmt::format(
          "model:\n  dtype: f64\n  config: {{model_type: llama, vocab_size: 23, hidden_size: 8, "
          "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
          "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
          "{}, max_position_embeddings: 64, hidden_act: silu}}\n"
          "train: {{seq_len: 7, global_batch: 8, warmup_steps: 0, lr: 0.01, seed: 3}}\n"
          "plan: {{pp: {}, pp_chunks: {}, pp_layers: [0, 1, 1, 0], pp_schedule: {}, "
          "threads_per_rank: 1}}\n",
          tied, two ? 2 : 4, two ? 2 : 1, built_in.name);
      SCOPED_TRACE(c.name);
      EXPECT_EQ(difference(train(c, {.steps = 2, .poison = true}),
                           train(c, {.on_one_rank = true, .steps = 2})),
                "");
    }
  }
}

/// Tokens, heads and words that ranks of tp share in two steps, beside uneven samples: parts of
/// parts with equal begins in buffers of different sizes.
TEST(PlanEquality, UnevenPartsMayBeSplitAgain) {
  struct Shape {
    int heads = 0;
    int64_t seq_len = 0, global_batch = 0;
    const char* plan;
  };
  const Shape shapes[] = {
      {4, 15, 4, "tp: 4, sequence_parallel: true, dp: 2, micro_batch: 2"},
      {6, 48, 3, "tp: 4, sequence_parallel: true, dp: 2, dp_samples: [1, 2]"},
      {6, 7, 5,
       "tp: 4, sequence_parallel: true, dp: 3, dp_samples: [2, 1, 2], shard: {params: all}"},
      {4, 15, 3, "tp: 4, sequence_parallel: true, cp: 3, micro_batch: 3, shard: {grads: all}"},
      // And products in blocks of such parts.
      {6, 16, 4, "tp: 3, dp: 2, micro_batch: 2, comm_tiles: 4, sequence_parallel: true"},
      {4, 16, 6, "tp: 2, dp: 3, micro_batch: 2, comm_tiles: 2, sequence_parallel: true"},
      {4, 16, 12,
       "tp: 2, dp: 6, dp_samples: [1, 1, 2, 2, 3, 3], comm_tiles: 3, all_reduce: ring, "
       "sequence_parallel: true"},
  };
  for (const Shape& shape : shapes) {
    Case c;
    c.seed = 13;
    c.name = shape.plan;
    c.text = fmt::format(
        "model:\n  dtype: f64\n  config: {{model_type: llama, vocab_size: 23, hidden_size: 8, "
        "num_hidden_layers: 2, num_attention_heads: {}, num_key_value_heads: 2, head_dim: 4, "
        "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
        "false, max_position_embeddings: 64, hidden_act: silu}}\n"
        "train: {{seq_len: {}, global_batch: {}, warmup_steps: 0, lr: 0.01}}\n"
        "plan: {{{}, threads_per_rank: 1, timeout_s: 60}}\n",
        shape.heads, shape.seq_len, shape.global_batch, shape.plan);
    SCOPED_TRACE(c.name);
    EXPECT_EQ(difference(train(c, {.steps = 2, .poison = true}),
                         train(c, {.on_one_rank = true, .steps = 2})),
              "");
  }
}

/// A stage may have copies with any share of the micro-batches, beside stages that have none.
TEST(PlanEquality, AStageMayHaveCopies) {
  const std::string path = ::testing::TempDir() + "copies.csv";
  struct Shape {
    const char* csv;
    const char* plan;
  };
  const Shape shapes[] = {
      {"0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F2,2F1,2B1,1B2,1B0\n2F0,1F1,2F2,2B2,2B0,1B1\n",
       "pp: 3, dp: 2, ep: 2"},
      // A rank for each micro-batch: the second has none in an evaluation.
      {"0F0,1F0,0F2,1F2,1I0,0I0,1W0,0W0,1B2,0B2\n0F1,1F1,1B1,0B1\n", "pp: 2, dp: 2, ep: 1"},
  };
  for (const Shape& shape : shapes) {
    write_file_atomic(path, shape.csv);
    Case c;
    c.seed = 9;
    c.name = shape.plan;
    c.text = fmt::format(
        "model:\n  dtype: f64\n  config: {{model_type: qwen3_moe, vocab_size: 23, hidden_size: 8, "
        "num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
        "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
        "true, max_position_embeddings: 64, hidden_act: silu, num_experts: 4, "
        "num_experts_per_tok: 2, moe_intermediate_size: 5, norm_topk_prob: true, "
        "router_aux_loss_coef: 0.05, decoder_sparse_step: 1, mlp_only_layers: []}}\n"
        "train: {{seq_len: 7, global_batch: 6, warmup_steps: 0, lr: 0.01, seed: 3}}\n"
        "plan: {{{}, pp_schedule: {}, threads_per_rank: 1}}\n",
        shape.plan, path);
    SCOPED_TRACE(c.name);
    const engine::Run run = engine::parse_run(c.text, c.name, {});
    for (const engine::ProgramSpec& spec : {engine::training(run), engine::losses(run)}) {
      const engine::Compiled compiled = engine::compile(spec);
      const check::Verdict verdict = check::check(compiled.program, compiled.reference);
      ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    }
    EXPECT_EQ(difference(train(c, {.steps = 2, .poison = true}),
                         train(c, {.on_one_rank = true, .steps = 2})),
              "");
  }
}

/// Rows of a schedule may name any stage of their rank. All of these equal one rank: one rank with
/// all stages, a V of two ranks (the first with the first and last stage), and halves of backward
/// passes.
TEST(PlanEquality, StagesMayLieAnywhere) {
  const std::string path = ::testing::TempDir() + "stages.csv";
  const std::string model =
      "model:\n  dtype: f64\n  config: {model_type: llama, vocab_size: 23, hidden_size: 8, "
      "num_hidden_layers: 4, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
      "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: true, "
      "max_position_embeddings: 64, hidden_act: silu}\n";
  struct Shape {
    const char* csv;
    const char* plan;
  };
  const Shape shapes[] = {
      {"0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n", "pp: 1, pp_chunks: 2, dp: 1"},
      {"0F0,1F0,2F0,3F0,3I0,2I0,0F1,1F1,2F1,3F1,3I1,1I0,0I0,2I1,1I1,0I1,"
       "3W0,0W0,1W0,2W0,0W1,1W1,2W1,3W1\n",
       "pp: 1, pp_chunks: 4, dp: 2"},
      {"0F0,0F1,3F0,3I0,3F1,3I1,0I0,3W0,0W0,0I1,0W1,3W1\n"
       "1F0,2F0,1F1,2F1,2I0,1I0,2W0,2I1,1I1,1W0,2W1,1W1\n",
       "pp: 2, pp_chunks: 2, dp: 2"},
      {"1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n",
       "pp: 2, pp_chunks: 2, dp: 1, pp_layers: [2, 0, 1, 1]"},
  };
  for (const Shape& shape : shapes) {
    write_file_atomic(path, shape.csv);
    Case c;
    c.seed = 5;
    c.name = shape.plan;
    const int64_t batch = std::string(shape.plan).find("dp: 2") == std::string::npos ? 2 : 4;
    c.text = model + fmt::format(
                         "train: {{seq_len: 7, global_batch: {}, warmup_steps: 0, lr: 0.01, "
                         "seed: 3}}\nplan: {{{}, pp_schedule: {}, threads_per_rank: 1, "
                         "timeout_s: 60}}\n",
                         batch, shape.plan, path);
    SCOPED_TRACE(c.text);
    const engine::Compiled compiled = engine::compile(engine::parse_run(c.text, c.name, {}));
    const check::Verdict verdict = check::check(compiled.program, compiled.reference);
    ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    EXPECT_EQ(verdict.num_messages > 0, compiled.program.classes.size() > 1);
    Outcome one, many;
    ASSERT_NO_THROW(one = train(c, {.on_one_rank = true, .steps = 2}));
    ASSERT_NO_THROW(many = train(c, {.steps = 2, .poison = true}));
    EXPECT_EQ(difference(many, one), "");
  }
}

}  // namespace
}  // namespace hocket::test::equality_test

// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Usual plans and their families, steps extrapolated from fewer micro-batches, the next bottleneck.
#include "planner/usual.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "parallel/schedules/schedule.h"
#include "planner/bottleneck.h"
#include "planner/search.h"
#include "run/config.h"
#include "tests/compare_util.h"

namespace hocket::planner {
namespace {

const char* kModel = R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
  "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "intermediate_size": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false})";

Trial trial(const std::string& name, int64_t batch, const std::string& more = "") {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path)
      << "name: test\nnodes: 2\ndevices_per_node: 2\ndevice:\n  name: test\n"
      << "  memory: {value: 1GB}\n  memory_bandwidth: {value: 10GB/s}\n"
      << "  launch: {value: 2us}\n  peak: {f32: {value: 50GFLOP/s}}\n"
         "  efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}\nlinks:\n"
      << "  intra: {latency: {value: 2us}, bandwidth: {value: 1GB/s}}\n"
      << "  inter: {latency: {value: 10us}, bandwidth: {value: 100MB/s}}\n"
      << more;
  const engine::Run run =
      engine::parse_run(std::string("{model: {config: ") + kModel +
                            "}, train: {global_batch: " + std::to_string(batch) + ", seq_len: 32}}",
                        "test", {});
  return {run, path, std::nullopt, 0};
}

uint8_t schedule_of(const std::string& name) {
  const std::vector<parallel::BuiltIn>& all = parallel::built_in_schedules();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == name) return static_cast<uint8_t>(i);
  }
  ADD_FAILURE() << name;
  return 0;
}

bool never() { return false; }

TEST(UsualPlans, BelongToTheFamilyOfTheirDegrees) {
  EXPECT_EQ(family_of({.dp = 8, .shard = kZero1}), Family::data);
  EXPECT_EQ(family_of({.dp = 8, .shard = kZero3}), Family::fsdp);
  EXPECT_EQ(family_of({.dp = 8, .shard = kHybrid}), Family::fsdp);
  EXPECT_EQ(family_of({.dp = 8, .shard = kGatheredOnce}), Family::fsdp);
  EXPECT_EQ(family_of({.dp = 4, .tp = 2, .shard = kZero3}), Family::tensor);
  EXPECT_EQ(family_of({.pp = 4, .dp = 2, .shard = kGatheredOnce}), Family::pipeline);
  EXPECT_EQ(family_of({.pp = 4, .dp = 2}), Family::pipeline);
  EXPECT_EQ(family_of({.pp = 4, .dp = 2, .tp = 2}), Family::pipeline_tensor);
  EXPECT_EQ(family_of({.dp = 8, .ep = 8}), Family::experts);
  EXPECT_EQ(family_of({.dp = 8, .ep = 8, .tp = 2}), Family::experts_tensor);
  EXPECT_EQ(family_of({.pp = 2, .dp = 8, .ep = 8, .tp = 2}), Family::experts_pipeline);
}

TEST(UsualPlans, IncludeThoseOfPractitioners) {
  SearchSpace space;
  space.ranks = 64;
  space.ranks_per_node = 8;
  space.seq_len = 8192;
  const PlanCandidate megatron{
      .pp = 4, .dp = 4, .tp = 4, .sequence_parallel = true, .shard = kZero1};
  EXPECT_TRUE(is_usual_mesh(space, megatron));
  EXPECT_TRUE(is_usual(megatron));
  PlanCandidate other = megatron;
  other.cp = 2;
  EXPECT_TRUE(is_usual_mesh(space, other));
  other.cp = 4;  // 2,048 tokens a rank
  EXPECT_FALSE(is_usual_mesh(space, other));
  other = megatron;
  other.tp = 16;  // beyond a node
  EXPECT_FALSE(is_usual_mesh(space, other));
  other = megatron;
  other.sequence_parallel = false;
  EXPECT_FALSE(is_usual_mesh(space, other));
  other = megatron;
  other.shard = kZero3;  // gathered for every pass of a pipeline
  EXPECT_FALSE(is_usual(other));
  other.shard = kGatheredOnce;
  EXPECT_TRUE(is_usual(other));
  EXPECT_FALSE(is_customary(other));
  other.recompute = Recompute::full;
  EXPECT_TRUE(is_customary(other));
  EXPECT_TRUE(is_usual({.dp = 64, .micro_batch = 2, .shard = kZero3}));
  EXPECT_FALSE(is_usual({.dp = 64, .micro_batch = 3, .shard = kZero3}));
  other = megatron;
  other.schedule = schedule_of("gpipe");
  EXPECT_FALSE(is_usual(other));
}

TEST(ShortenedSteps, AreExtrapolatedWithinTheirBound) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "long steps are simulated: minutes under sanitizers";
  }
  const Trial of = trial("usual_long.yaml", 1024);
  const SearchSpace space = of.space({});
  const std::vector<PlanCandidate> plans = {
      {.pp = 4},
      {.pp = 2, .dp = 2, .shard = kZero1},
      {.pp = 2,
       .chunks = 2,
       .tp = 2,
       .sequence_parallel = true,
       .schedule = schedule_of("interleaved")},
      {.dp = 4, .recompute = Recompute::full, .shard = kZero3},
      {.pp = 4, .chunks = 2, .schedule = schedule_of("zb-v")},
      {.pp = 4, .schedule = schedule_of("gpipe")}};
  for (const PlanCandidate& plan : plans) {
    const std::string what = describe(plan, space);
    ASSERT_EQ(shortened_micro_batches(plan, space).size(), 3) << what;
    const Outcome whole = *of.simulate(plan, space, never);
    const Outcome shorter = *of.extrapolate(plan, space, 1e9, never);
    EXPECT_TRUE(shorter.extrapolated) << what;
    EXPECT_FALSE(whole.extrapolated) << what;
    EXPECT_LE(std::abs(shorter.step_s - whole.step_s), shorter.error_s + 1e-4 * whole.step_s)
        << what << ": " << shorter.step_s << ", in full " << whole.step_s;
    EXPECT_LE(shorter.error_s, 0.02 * whole.step_s) << what;
    EXPECT_NEAR(static_cast<double>(shorter.bytes), static_cast<double>(whole.bytes),
                0.03 * static_cast<double>(whole.bytes))
        << what;
    EXPECT_NEAR(shorter.mfu, whole.mfu, 0.02 * whole.mfu) << what;
    EXPECT_NEAR(shorter.compute_s + shorter.exposed_s + shorter.bubble_s + shorter.idle_s,
                shorter.step_s, 1e-6 * shorter.step_s);
    // A plan that is clearly slower ends one step earlier.
    const Outcome slow = *of.extrapolate(plan, space, 0, never);
    EXPECT_GT(slow.error_s, shorter.error_s) << what;
  }
  // A short step is simulated as it is.
  const Trial few = trial("usual_short.yaml", 16);
  EXPECT_FALSE(few.extrapolate({.pp = 4}, few.space({}), 1e9, never)->extrapolated);
}

TEST(ShortenedSteps, EndWithTheTwoBestInFull) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "dozens of plans are simulated: minutes under sanitizers";
  }
  const Trial of = trial("usual_full.yaml", 1024);
  const SearchSpace space = of.space({{"plan.micro_batch", "1"},
                                      {"plan.recompute", "none"},
                                      {"plan.cp", "1"},
                                      {"plan.pp", "2"},
                                      {"plan.shard.grads", "none"},
                                      {"plan.all_reduce", "native"}});
  SearchOptions options;
  options.time_limit_s = 0;
  const SearchResult found = search(of, space, options);
  ASSERT_GE(found.best.size(), 2);
  EXPECT_GT(found.counts.extrapolated, 0);
  EXPECT_FALSE(found.best[0].extrapolated);
  EXPECT_FALSE(found.best[1].extrapolated);
  EXPECT_TRUE(found.complete);
  for (const Outcome& outcome : found.best) {
    if (outcome.extrapolated) {
      EXPECT_GE(outcome.step_s - outcome.error_s, found.best[0].step_s)
          << describe(outcome.plan, space);
    }
  }
}

TEST(NextBottleneck, GainsAddUpToTheWholeStep) {
  const Trial of = trial("usual_gains.yaml", 8);
  const SearchSpace space = of.space(
      {{"plan.recompute", "none"}, {"plan.micro_batch", "1"}, {"plan.all_reduce", "native"}});
  SearchOptions options;
  options.time_limit_s = 0;
  const SearchResult found = search(of, space, options);
  std::map<std::string, double> gains;
  double sum = 0;
  for (const Gain& gain : found.gains) {
    gains[gain.resource] = gain.share;
    sum += gain.share;
    EXPECT_GE(gain.share, -1e-9) << gain.resource;
    EXPECT_LE(gain.share, 1 - 1 / kImprovement + 1e-9) << gain.resource;
  }
  EXPECT_EQ(gains.size(), 5);
  // Nothing else takes time: together they save about the same as 10 % more of everything.
  EXPECT_NEAR(sum, 1 - 1 / kImprovement, 0.03);
  EXPECT_GT(gains.at("kernel launches"), gains.at("memory bandwidth"));
}

TEST(NextBottleneck, RaisesOnlyTheNamedResource) {
  const Trial of =
      trial("usual_better.yaml", 8,
            "measured: [{op: all_reduce, ranks: 4, nodes: 2, bytes: [1, 1000], us: [110, "
            "220]}, {op: all_reduce, ranks: 2, nodes: 1, bytes: [1], us: [11]}]\n");
  std::map<std::string, cost::Cluster> better;
  for (BetterResource& resource : better_resources(of)) {
    better[resource.name] = resource.cluster;
  }
  const cost::Cluster& inside = better.at("links inside nodes");
  const cost::Cluster& network = better.at("network");
  EXPECT_NEAR(inside.links.intra.bandwidth.value, 1.1e9, 1);
  EXPECT_NEAR(inside.links.inter.bandwidth.value, 1e8, 1);
  EXPECT_NEAR(inside.measured[1].us[0], 10, 1e-9);
  EXPECT_NEAR(inside.measured[0].us[0], 110, 1e-9);
  EXPECT_NEAR(network.links.inter.bandwidth.value, 1.1e8, 1);
  EXPECT_NEAR(network.measured[0].us[1], 200, 1e-9);
  EXPECT_NEAR(better.at("arithmetic").device.peak.f32.value, 55e9, 1);
  EXPECT_NEAR(better.at("memory bandwidth").device.memory_bandwidth.value, 11e9, 1);
}

}  // namespace
}  // namespace hocket::planner

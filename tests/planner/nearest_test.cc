// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// What a search says of plans that it did not simulate: those nearest to fitting, and those of
// every family.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "planner/search.h"
#include "run/config.h"
#include "tests/compare_util.h"

namespace hocket::planner {
namespace {

const char* kSmallModel = R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "intermediate_size": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false})";

/// Four devices of this memory, for batches of 16 sequences.
Trial trial_with_memory(const std::string& memory, const std::string& more = "") {
  const std::string path = ::testing::TempDir() + "plan_nearest.yaml";
  std::ofstream(path) << "name: test\nnodes: 2\ndevices_per_node: 2\ndevice:\n  name: test\n"
                      << "  memory: {value: " << memory << "}\n"
                      << "  memory_bandwidth: {value: 10GB/s}\n  launch: {value: 2us}\n"
                      << "  peak: {f32: {value: 50GFLOP/s}}\nlinks:\n"
                      << "  intra: {latency: {value: 2us}, bandwidth: {value: 1GB/s}}\n"
                      << "  inter: {latency: {value: 10us}, bandwidth: {value: 100MB/s}}\n"
                      << more;
  const engine::Run run = engine::parse_run(std::string("{model: {config: ") + kSmallModel +
                                                "}, train: {global_batch: 16, seq_len: 256}}",
                                            "test", {});
  return {run, path, std::nullopt, 0};
}

const std::map<std::string, std::string> kFewPlans = {
    {"plan.all_reduce", "native"}, {"plan.cp", "1"}, {"plan.pp", "1"}, {"plan.recompute", "none"}};

SearchResult search_without_limit(const Trial& trial,
                                  const std::map<std::string, std::string>& given,
                                  bool everything = false) {
  SearchOptions options;
  options.time_limit_s = 0;
  options.everything = everything;
  return search(trial, trial.space(given), options);
}

TEST(NearestFit, IsSimulatedAndHasAboutTheLeastMemory) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Outcome& outcome :
       search_without_limit(trial_with_memory("1GB"), kFewPlans, true).best) {
    least = std::min(least, outcome.bytes);
  }
  // Bounds drop all plans.
  const SearchResult none = search_without_limit(trial_with_memory("600000B"), kFewPlans);
  ASSERT_TRUE(none.best.empty());
  EXPECT_TRUE(none.complete);
  EXPECT_EQ(none.counts.too_large, none.counts.plans);
  ASSERT_GT(none.nearest_simulated.bytes, 0);
  EXPECT_GE(none.nearest_simulated.bytes, static_cast<double>(least));
  EXPECT_LE(none.nearest_simulated.bytes, 1.2 * static_cast<double>(least));
  EXPECT_EQ(none.nearest.bytes, 0) << "it is simulated";
  // Some plans pass the bounds, and none fits.
  const SearchResult few = search_without_limit(trial_with_memory("2000000B"), kFewPlans);
  ASSERT_TRUE(few.best.empty());
  EXPECT_LT(few.counts.too_large, few.counts.plans);
  EXPECT_TRUE(few.complete);
  EXPECT_LE(few.nearest_simulated.bytes, 1.2 * static_cast<double>(least));
}

TEST(NearestFit, CountsParametersAndStatesOnce) {
  const SearchResult none = search_without_limit(trial_with_memory("600000B"), kFewPlans);
  // Embedding, head and last norm; norms, attention and MLP of four layers: fp32 with two states.
  const double elements = 2 * 64 * 32 + 32 + 4 * (2 * 32 + 32 * 32 * 3 + 3 * 32 * 64);
  EXPECT_EQ(none.state_bytes, 4 * 3 * elements);
}

TEST(NearestFit, IsNamedAmongUntriedPlans) {
  // Time is up as soon as usual plans are bounded.
  double now_s = 0;
  SearchOptions options;
  options.threads = 1;
  options.time_limit_s = 50;
  options.clock = [&] { return now_s; };
  options.progress = [&](const Counts& counts, const Outcome*, const std::string&) {
    now_s = counts.left > 0 ? 1000 : 0;
  };
  const Trial small = trial_with_memory("2000000B");
  const SearchResult found = search(small, small.space(kFewPlans), options);
  ASSERT_TRUE(found.best.empty());
  EXPECT_FALSE(found.complete);
  EXPECT_GT(found.counts.left, 0);
  EXPECT_GT(found.nearest_untried.bytes, 0);
  EXPECT_EQ(found.nearest_untried.lower_bound_bytes, 0);
}

TEST(Families, AreAccountedForHoweverShortTheSearch) {
  const Trial of = trial_with_memory("1GB");
  std::set<Family> all;
  const SearchSpace space = of.space({{"plan.all_reduce", "native"}, {"plan.cp", "1"}});
  for (const PlanCandidate& mesh : meshes(space)) {
    visit_rest(space, mesh, [&](const PlanCandidate& plan) { all.insert(family_of(plan)); });
  }
  EXPECT_EQ(all.size(), 5U);
  SearchOptions options;
  options.threads = 1;
  options.time_limit_s = 1e-6;
  const SearchResult found = search(of, space, options);
  std::set<Family> seen;
  for (const Outcome& outcome : found.best) {
    seen.insert(family_of(outcome.plan));
  }
  EXPECT_LT(seen.size(), all.size());
  for (size_t family = 0; family < kFamilies; ++family) {
    const FamilyRest& rest = found.rest_of[family];
    if (rest.left > 0 || rest.slower > 0 || rest.is_unseen) {
      seen.insert(static_cast<Family>(family));
    }
    EXPECT_EQ(rest.step_s > 0, rest.left > 0) << kFamilyNames[family];
  }
  EXPECT_EQ(seen, all);
  // Bounded usual plans are still counted.
  EXPECT_EQ(found.counts.meshes_left, found.counts.meshes);
  EXPECT_GT(found.counts.left, 0);
}

TEST(Families, HaveTheirCustomaryPlanSimulated) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "dozens of plans are simulated: minutes under sanitizers";
  }
  const Trial of = trial_with_memory("1GB");
  const SearchResult found =
      search_without_limit(of, {{"plan.all_reduce", "native"}, {"plan.cp", "1"}});
  std::set<Family> with;
  for (const Outcome& outcome : found.best) {
    if (is_customary(outcome.plan)) {
      with.insert(family_of(outcome.plan));
    }
  }
  EXPECT_TRUE(with.contains(Family::data));
  EXPECT_TRUE(with.contains(Family::fsdp));
}

/// A plan's memory has the logits of the trainer beside what lives at the loss, by the rule of
/// `simulate`: never more than all of them beside the plan's peak.
TEST(Memory, HasTheLogitsOfTheTrainer) {
  const auto bytes_with = [](int64_t each) {
    const Trial trial = trial_with_memory(
        "1GB", "framework: {step: {value: 0s}, logits: {memory: {value: " + std::to_string(each) +
                   "}, traffic: {value: 30}}}\n");
    const PlanCandidate plan{.dp = 4, .micro_batch = 2};
    return trial.simulate(plan, trial.space({}), [] { return false; })->bytes;
  };
  constexpr int64_t kLogits = 2 * 256 * 64;
  const int64_t none = bytes_with(0);
  EXPECT_LE(bytes_with(6), none + 6 * kLogits);
  EXPECT_GT(bytes_with(600), none);
  EXPECT_LT(bytes_with(600), none + 600 * kLogits);
  EXPECT_EQ(bytes_with(606) - bytes_with(600), 6 * kLogits);
}

}  // namespace
}  // namespace hocket::planner

// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The search against brute force over the same space: it finds the same best plan, and no plan is
// faster than its lower bound.
#include "planner/search.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>

#include "base/error.h"
#include "base/file.h"
#include "interop/foreign.h"
#include "parallel/schedules/schedule.h"
#include "planner/estimate.h"
#include "run/config.h"
#include "run/run_text.h"
#include "tests/compare_util.h"

namespace hocket::planner {
namespace {

const char* kDense = R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "intermediate_size": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false})";
const char* kMoe = R"({"model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 32,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "intermediate_size": 64, "moe_intermediate_size": 16, "num_experts": 4,
  "num_experts_per_tok": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
  "norm_topk_prob": true, "tie_word_embeddings": false})";

/// A cluster of two nodes of two devices, with slow links between nodes.
std::string cluster_file(const std::string& name, const std::string& memory,
                         const std::string& between, const std::string& heterogeneous = "") {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path)
      << "name: test\nnodes: 2\ndevices_per_node: 2\ndevice:\n  name: test\n"
      << "  memory: {value: " << memory << "}\n"
      << "  memory_bandwidth: {value: 10GB/s}\n  launch: {value: 2us}\n"
      << "  peak: {f32: {value: 50GFLOP/s}, bf16: {value: 90GFLOP/s}}\n"
         "  efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}\nlinks:\n"
      << "  intra: {latency: {value: 2us}, bandwidth: {value: 1GB/s}}\n"
      << "  inter: {latency: {value: 10us}, bandwidth: {value: " << between << "}}\n"
      << heterogeneous << "\n";
  return path;
}

Trial trial(const char* model, const std::string& cluster, int64_t batch, int64_t length,
            const std::vector<std::string>& set = {}) {
  const engine::Run run =
      engine::parse_run(std::string("{model: {config: ") + model + "}, train: {global_batch: " +
                            std::to_string(batch) + ", seq_len: " + std::to_string(length) + "}}",
                        "test", set);
  return {run, cluster, std::nullopt, 0};
}

SearchResult best_of(const Trial& trial, const SearchSpace& space, bool everything) {
  SearchOptions options;
  options.time_limit_s = 0;
  options.everything = everything;
  return search(trial, space, options);
}

/// `text` with one part in place of another.
std::string with(std::string text, const std::string& part, const std::string& other) {
  text.replace(text.find(part), part.size(), other);
  return text;
}

/// Expects that no simulated plan takes less time or memory than its lower bounds.
void expect_bounds_hold(const Trial& trial, const SearchSpace& space, const SearchResult& all) {
  const cost::CostModel costs = trial.costs();
  Estimator estimator(space, trial.graph(), costs, {});
  std::vector<Outcome> outcomes = all.best;
  outcomes.insert(outcomes.end(), all.over_memory.begin(), all.over_memory.end());
  for (const Outcome& outcome : outcomes) {
    PlanCandidate plan = outcome.plan;
    const Estimate estimate = estimator.estimate(plan);
    const Estimate floor = estimator.floor_of_mesh(plan);
    EXPECT_LE(estimate.lower_bound_s, outcome.step_s * (1 + 1e-6)) << describe(plan, space);
    EXPECT_LE(floor.lower_bound_s, outcome.step_s * (1 + 1e-6)) << describe(plan, space);
    EXPECT_LE(estimate.lower_bound_bytes, static_cast<double>(outcome.bytes))
        << describe(plan, space);
    EXPECT_LE(floor.lower_bound_bytes, static_cast<double>(outcome.bytes)) << describe(plan, space);
  }
}

/// Expects the search to find the exhaustive result; with `prunes`, in fewer simulations.
void expect_exhaustive(const Trial& trial, const SearchSpace& space, bool prunes = true) {
  const SearchResult all = best_of(trial, space, true);
  const SearchResult found = best_of(trial, space, false);
  ASSERT_FALSE(all.best.empty());
  ASSERT_FALSE(found.best.empty());
  EXPECT_TRUE(all.complete);
  EXPECT_TRUE(found.complete);
  EXPECT_EQ(all.counts.plans, all.counts.simulated);
  EXPECT_DOUBLE_EQ(found.best.front().step_s, all.best.front().step_s);
  EXPECT_LE(found.counts.simulated, all.counts.simulated - (prunes ? 1 : 0));
  EXPECT_DOUBLE_EQ(found.lower_bound_s, found.best.front().step_s);
  expect_bounds_hold(trial, space, all);
}

/// Returns the fixed keys of a brute-force space: `keys`, and one reduction algorithm unless
/// HOCKET_LONG=1 asks for all.
std::map<std::string, std::string> narrowed(std::map<std::string, std::string> given) {
  if (!test::is_long()) {
    std::cout << "one all-reduce algorithm; HOCKET_LONG=1 takes all\n";
    given["plan.all_reduce"] = "native";
  }
  return given;
}

TEST(PlanSearch, FindsWhatBruteForceFindsOfADenseModel) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const Trial dense = trial(kDense, cluster_file("plan_dense.yaml", "1GB", "100MB/s"), 8, 32);
  expect_exhaustive(
      dense, dense.space(narrowed({{"plan.shard.grads", "none"}, {"plan.recompute", "none"}})));
}

TEST(PlanSearch, FindsWhatBruteForceFindsOfExperts) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const Trial experts = trial(kMoe, cluster_file("plan_moe.yaml", "1GB", "200MB/s"), 8, 32);
  expect_exhaustive(
      experts, experts.space(narrowed(
                   {{"plan.shard.grads", "none"}, {"plan.pp", "1"}, {"plan.recompute", "none"}})));
}

TEST(PlanSearch, FindsWhatBruteForceFindsOnUnlikeNodes) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  // The second half of the devices is slower: layers are assigned by speed.
  const Trial uneven = trial(kDense,
                             cluster_file("plan_uneven.yaml", "1GB", "100MB/s",
                                          "heterogeneous_nodes: [{first: 1, speed: 0.4}]"),
                             8, 32);
  std::map<std::string, std::string> given =
      narrowed({{"plan.recompute", "none"}, {"plan.micro_batch", "1"}});
  if (!test::is_long()) {
    given["plan.shard.grads"] = "none";
  }
  const SearchSpace space = uneven.space(given);
  EXPECT_FALSE(space.balanced.empty());
  expect_exhaustive(uneven, space);
}

TEST(PlanSearch, AProfileOfSlowNodesDoesNotBoundFastOnes) {
  // The first node has devices of another file, ten times as fast. Only its two ranks are used.
  const std::string fast = cluster_file("plan_fast.yaml", "1GB", "1GB/s");
  std::string text = read_file(fast);
  text.replace(text.find("50GFLOP"), 2, "500");
  text.replace(text.find("10GB/s"), 2, "100");
  std::ofstream(fast) << text;
  const std::string mixed =
      cluster_file("plan_beside_fast.yaml", "1GB", "1GB/s",
                   "heterogeneous_nodes: [{first: 0, cluster: plan_fast.yaml}]");
  cost::Profile profile;
  profile.device = "test";
  profile.memory_bytes_per_s = 10e9;
  profile.peak_flops = {{"f32", 50e9}};
  const engine::Run run = engine::parse_run(
      std::string("{model: {config: ") + kDense + "}, train: {global_batch: 8, seq_len: 64}}",
      "test", {});
  const Trial two(run, mixed, profile, 2);
  const SearchSpace space = two.space({});
  const cost::CostModel costs = two.costs();
  Estimator estimator(space, two.graph(), costs, {});
  for (const PlanCandidate& plan :
       {PlanCandidate{.dp = 2, .micro_batch = 4}, PlanCandidate{.tp = 2, .micro_batch = 8}}) {
    const std::optional<Outcome> outcome = two.simulate(plan, space, [] { return false; });
    ASSERT_TRUE(outcome && outcome->refused.empty()) << outcome->refused;
    EXPECT_LE(estimator.estimate(plan).lower_bound_s, outcome->step_s) << describe(plan, space);
    EXPECT_LE(estimator.floor_of_mesh(plan).lower_bound_s, outcome->step_s);
  }
}

TEST(PlanSearch, LaysSeveralChunksByTheSpeedOfTheirRanks) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "dozens of plans are simulated: minutes under sanitizers";
  }
  std::string layers = kDense;
  layers.replace(layers.find("_layers\": 4"), 11, "_layers\": 12");
  const std::string cluster = cluster_file("plan_chunks.yaml", "1GB", "1GB/s",
                                           "heterogeneous_nodes: [{first: 1, speed: 0.5}]");
  const Trial uneven = trial(layers.c_str(), cluster, 8, 256);
  const SearchSpace space = uneven.space({{"plan.recompute", "none"},
                                          {"plan.pp", "2"},
                                          {"plan.tp", "1"},
                                          {"plan.micro_batch", "1"},
                                          {"plan.shard.optimizer", "none"},
                                          {"plan.all_reduce", "native"}});
  const SearchResult found = best_of(uneven, space, false);
  ASSERT_TRUE(found.complete);
  const PlanCandidate best = found.best.front().plan;
  EXPECT_FALSE(best.layers.none());
  EXPECT_GT(best.chunks, 1);
  // Equal layers on each, or one chunk split by speed, is slower.
  for (const Outcome& outcome : found.best) {
    if (outcome.plan.layers.none() || outcome.plan.chunks == 1) {
      EXPECT_GT(outcome.step_s, found.best.front().step_s * 1.02);
    }
  }
}

TEST(PlanSearch, ChunksAreLaidByLayersAloneWhereDevicesAreAlike) {
  std::string layers = kDense;
  layers.replace(layers.find("_layers\": 4"), 11, "_layers\": 12");
  const Trial alike =
      trial(layers.c_str(), cluster_file("plan_alike.yaml", "1GB", "1GB/s"), 8, 256);
  for (const auto& [stages, balanced] : alike.space({}).balanced) {
    EXPECT_EQ(stages.chunks, 1);
  }
}

/// Eight layers between a large embedding and a head that is the same.
std::string heavy_ends() {
  std::string model = kDense;
  for (const auto& [part, other] : std::vector<std::pair<const char*, const char*>>{
           {"_layers\": 4", "_layers\": 8"},
           {"vocab_size\": 64", "vocab_size\": 4096"},
           {"hidden_size\": 32", "hidden_size\": 128"},
           {"intermediate_size\": 64", "intermediate_size\": 256"},
           {"head_dim\": 8", "head_dim\": 32"},
           {"false", "true"}}) {
    model = with(model, part, other);
  }
  return model;
}

/// Four devices, each a node.
std::string four_nodes(const std::string& name, const std::string& memory,
                       const std::string& heterogeneous = "") {
  const std::string path = cluster_file(name, memory, "20MB/s", heterogeneous);
  const std::string text = read_file(path);
  std::ofstream(path) << with(with(text, "nodes: 2", "nodes: 4"), "per_node: 2", "per_node: 1");
  return path;
}

TEST(PlanSearch, LaysLayersByMemoryAsWellAsByTime) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const std::string model = heavy_ends();
  const std::map<std::string, std::string> given = {{"plan.pp", "4"},
                                                    {"plan.micro_batch", "1"},
                                                    {"plan.recompute", "none"},
                                                    {"plan.pp_schedule", "1f1b"}};
  const Trial roomy = trial(model.c_str(), four_nodes("plan_ends.yaml", "1GB"), 8, 32);
  const SearchSpace all = roomy.space(given);
  // Every split of the eight layers over four stages, without a memory limit. Only the first and
  // the last may be empty: they have the embedding and the head.
  std::vector<Outcome> ways;
  for (int64_t first = 0; first <= 6; ++first) {
    for (int64_t second = 1; first + second <= 7; ++second) {
      for (int64_t third = 1; first + second + third <= 8; ++third) {
        PlanCandidate plan{.pp = 4};
        plan.layers = StageLayers({first, second, third, 8 - first - second - third});
        ways.push_back(*roomy.simulate(plan, all, [] { return false; }));
        ASSERT_EQ(ways.back().refused, "");
      }
    }
  }
  const auto least = std::min_element(
      ways.begin(), ways.end(),
      [](const Outcome& left, const Outcome& right) { return left.bytes < right.bytes; });
  const Outcome even = *roomy.simulate({.pp = 4}, all, [] { return false; });
  ASSERT_LT(static_cast<double>(least->bytes), 0.85 * static_cast<double>(even.bytes));
  for (const double room : {1.02, 1.1}) {
    const auto limit = static_cast<int64_t>(room * static_cast<double>(least->bytes));
    const Trial tight = trial(
        model.c_str(), four_nodes("plan_tight_ends.yaml", std::to_string(limit) + "B"), 8, 32);
    const SearchSpace space = tight.space(given);
    double expected = 1e9;
    for (const Outcome& way : ways) {
      if (way.bytes <= limit) {
        expected = std::min(expected, way.step_s);
      }
    }
    const SearchResult found = best_of(tight, space, false);
    ASSERT_FALSE(found.best.empty()) << limit;
    EXPECT_LE(found.best.front().step_s, expected * 1.02) << limit;
    expect_bounds_hold(tight, space, best_of(tight, space, true));
  }
}

TEST(PlanSearch, FindsWhatBruteForceFindsWhereMemoryBinds) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const std::string model = heavy_ends();
  const Trial tight = trial(model.c_str(), four_nodes("plan_binds.yaml", "13MB"), 8, 32);
  std::map<std::string, std::string> given{{"plan.tp", "1"}, {"plan.shard.grads", "none"}};
  if (!test::is_long()) {
    given.insert({{"plan.cp", "1"}, {"plan.micro_batch", "1"}});
  }
  const SearchSpace space = tight.space(narrowed(given));
  expect_exhaustive(tight, space);
  EXPECT_GT(best_of(tight, space, false).counts.too_large, 0);
}

TEST(PlanSearch, FindsWhatBruteForceFindsOfUnlikeLayers) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  // Layers without experts, wide ones, are first and in the middle.
  const std::string model =
      with(with(kMoe, "_layers\": 2", "_layers\": 6"), "\"intermediate_size\": 64",
           "\"mlp_only_layers\": [0, 3], \"intermediate_size\": 256");
  const Trial heterogeneous =
      trial(model.c_str(), cluster_file("plan_kinds.yaml", "1GB", "200MB/s"), 8, 32);
  expect_exhaustive(heterogeneous,
                    heterogeneous.space(narrowed({{"plan.shard.grads", "none"},
                                                  {"plan.micro_batch", "1"},
                                                  {"plan.tp", "1"},
                                                  {"plan.recompute", "none"}})),
                    false);
}

TEST(PlanSearch, ASlowerDeviceNeverGivesAFasterPlan) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const std::string model = heavy_ends();
  const auto best = [&](const std::string& memory, const std::string& heterogeneous) {
    const Trial of =
        trial(model.c_str(), four_nodes("plan_slower.yaml", memory, heterogeneous), 8, 32);
    const SearchResult found = best_of(of,
                                       of.space({{"plan.tp", "1"},
                                                 {"plan.recompute", "none"},
                                                 {"plan.cp", "1"},
                                                 {"plan.shard.grads", "none"},
                                                 {"plan.micro_batch", "1"}}),
                                       false);
    return found.best.empty() ? 1e9 : found.best.front().step_s;
  };
  for (const char* const memory : {"1GB", "13MB"}) {
    if (memory == std::string("1GB") && !test::is_long()) continue;
    const double whole = best(memory, "");
    for (const char* const slow : {"{first: 3, speed: 0.25}", "{first: 0, speed: 0.5}"}) {
      EXPECT_GE(best(memory, std::string("heterogeneous_nodes: [") + slow + "]"),
                whole * (1 - 1e-9))
          << memory << " " << slow;
    }
  }
}

TEST(PlanSearch, StopsDuringACompilation) {
  const Trial dense = trial(kDense, cluster_file("plan_given_up.yaml", "1GB", "50MB/s"), 8, 32);
  const SearchSpace space = dense.space({});
  const PlanCandidate plan{.pp = 2, .dp = 2, .micro_batch = 1};
  int64_t asked = 0;
  ASSERT_TRUE(dense.simulate(plan, space, [&] { return ++asked < 0; }));
  // Asks far more often than there are stages and passes, and ends on every request to stop.
  EXPECT_GT(asked, 1000);
  for (const int64_t last : {int64_t{1}, asked / 4, asked / 2, asked}) {
    int64_t here = 0;
    EXPECT_FALSE(dense.simulate(plan, space, [&] { return ++here == last; }));
    EXPECT_EQ(here, last);
  }
}

TEST(PlanSearch, DealsSequencesToReplicasByTheirSpeed) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const std::string cluster = cluster_file("plan_dealt.yaml", "1GB", "500MB/s",
                                           "heterogeneous_nodes: [{first: 1, speed: 0.4}]");
  const Trial uneven = trial(kDense, cluster, 28, 64);
  std::map<std::string, std::string> given = {{"plan.recompute", "none"},
                                              {"plan.tp", "1"},
                                              {"plan.shard.grads", "none"},
                                              {"plan.all_reduce", "native"}};
  if (!test::is_long()) {
    given["plan.cp"] = "1";
  }
  const SearchSpace space = uneven.space(given);
  expect_exhaustive(uneven, space);
  const Outcome best = best_of(uneven, space, false).best.front();
  EXPECT_EQ(samples(space, best.plan), (std::vector<int64_t>{10, 10, 4, 4}));
  // With equal samples on each, the slow ranks delay the fast ones.
  given["plan.dp_samples"] = "[]";
  const SearchSpace even = uneven.space(given);
  const SearchResult alike = best_of(uneven, even, false);
  for (const Outcome& outcome : alike.best) {
    EXPECT_EQ(outcome.plan.sequences, 0);
  }
  EXPECT_LT(best.step_s, alike.best.front().step_s * 0.85);
  // Given plan.dp_samples are kept.
  given["plan.dp_samples"] = "[8, 8, 6, 6]";
  const SearchSpace told = uneven.space(given);
  for (const Outcome& outcome : best_of(uneven, told, false).best) {
    EXPECT_EQ(samples(told, outcome.plan), (std::vector<int64_t>{8, 8, 6, 6}));
  }
}

TEST(PlanSearch, TakesTwoStepsToExpertsWhereThatIsFaster) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "dozens of plans are simulated: minutes under sanitizers";
  }
  // An exchange among all four ranks was measured to be slow.
  const std::string slow =
      "measured: [{op: all_to_all, ranks: 4, nodes: 2, bytes: [1, 1000000], us: [900, 1000]}]";
  const Trial experts = trial(kMoe, cluster_file("plan_inner.yaml", "1GB", "200MB/s", slow), 8, 32);
  std::map<std::string, std::string> given = narrowed({{"plan.shard.grads", "none"},
                                                       {"plan.pp", "1"},
                                                       {"plan.ep", "4"},
                                                       {"plan.recompute", "none"}});
  const SearchSpace space = experts.space(given);
  expect_exhaustive(experts, space);
  const SearchResult found = best_of(experts, space, false);
  EXPECT_EQ(found.best.front().plan.ep_inner, 2);
  for (size_t i = 0; i < found.best.size(); ++i) {
    for (size_t other = 0; other < i; ++other) {
      EXPECT_FALSE(found.best[i].plan == found.best[other].plan) << "simulated twice";
    }
  }
  given["plan.ep_inner"] = "1";
  const SearchSpace told = experts.space(given);
  const SearchResult in_one = best_of(experts, told, false);
  for (const Outcome& outcome : in_one.best) {
    EXPECT_EQ(outcome.plan.ep_inner, 1);
  }
  EXPECT_LT(found.best.front().step_s, in_one.best.front().step_s);
}

TEST(PlanSearch, SkipsAPlanThatEqualsAnother) {
  const Trial experts = trial(kMoe, cluster_file("plan_names.yaml", "1GB", "200MB/s"), 8, 32);
  const SearchSpace space = experts.space({});
  PlanCandidate one;
  one.dp = one.ep = 4;
  PlanCandidate all = one;
  all.ep_inner = 4;
  const auto never = [] { return false; };
  EXPECT_EQ(experts.simulate(one, space, never)->step_s,
            experts.simulate(all, space, never)->step_s);
  EXPECT_EQ(inner_experts(space, one), (std::vector<int32_t>{2}));
}

TEST(PlanSearch, KeepsToTheAvailableMemory) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  // Between the memory of the largest and the smallest plan: some plans are left out.
  const Trial roomy = trial(kDense, cluster_file("plan_roomy.yaml", "1GB", "100MB/s"), 8, 64);
  std::map<std::string, std::string> given = {{"plan.micro_batch", "2"},
                                              {"plan.all_reduce", "native"}};
  if (!test::is_long()) {
    given["plan.cp"] = "1";
  }
  const SearchResult all = best_of(roomy, roomy.space(given), true);
  int64_t least = all.best.front().bytes, most = 0;
  for (const Outcome& outcome : all.best) {
    least = std::min(least, outcome.bytes);
    most = std::max(most, outcome.bytes);
  }
  const int64_t limit = least + (most - least) / 8;
  const Trial tight =
      trial(kDense, cluster_file("plan_tight.yaml", std::to_string(limit) + "B", "100MB/s"), 8, 64);
  const SearchResult found = best_of(tight, tight.space(given), false);
  double expected = 1e9;
  for (const Outcome& outcome : all.best) {
    if (outcome.bytes <= limit) {
      expected = std::min(expected, outcome.step_s);
    }
  }
  ASSERT_FALSE(found.best.empty());
  EXPECT_DOUBLE_EQ(found.best.front().step_s, expected);
  EXPECT_LE(found.best.front().bytes, limit);
  EXPECT_GT(found.counts.too_large + found.counts.over_memory, 0);
}

TEST(PlanSearch, SameResultForAnyNumberOfThreads) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const Trial dense = trial(kDense, cluster_file("plan_threads.yaml", "1GB", "50MB/s"), 8, 32);
  const SearchSpace space = dense.space(
      narrowed({{"plan.recompute", "none"}, {"plan.tp", "1"}, {"plan.shard.grads", "none"}}));
  SearchOptions options;
  options.time_limit_s = 0;
  options.threads = 1;
  const SearchResult one = search(dense, space, options);
  options.threads = 4;
  const SearchResult four = search(dense, space, options);
  EXPECT_EQ(one.best.front().plan, four.best.front().plan);
  EXPECT_DOUBLE_EQ(one.best.front().step_s, four.best.front().step_s);
  // Equally fast plans are in a fixed order, whichever was simulated first.
  int ties = 0;
  for (const SearchResult* result : {&one, &four}) {
    for (size_t i = 1; i < result->best.size(); ++i) {
      const Outcome &before = result->best[i - 1], &here = result->best[i];
      ties += before.step_s == here.step_s ? 1 : 0;
      EXPECT_TRUE(before.step_s < here.step_s || before.plan < here.plan);
    }
  }
  EXPECT_GT(ties, 0);
}

/// Every plan of a space, and with ZeRO-1 the one with parameters gathered once a step, which
/// stands in for it.
void visit_all(const SearchSpace& space, const std::function<void(const PlanCandidate&)>& visit) {
  for (const PlanCandidate& mesh : meshes(space)) {
    for (PlanCandidate base : micro_batches(space, mesh)) {
      for (const Pipeline& pipeline : pipelines(space, base)) {
        base.schedule = pipeline.schedule;
        base.chunks = pipeline.chunks;
        visit_rest(space, base, [&](PlanCandidate plan) {
          visit(plan);
          if (plan.shard == kZero1) {
            PlanCandidate once = plan;
            once.shard = kGatheredOnce;
            visit(once);
          }
          for (const CollectiveAlgorithm collectives : other_collectives(space, plan)) {
            plan.collectives = collectives;
            visit(plan);
          }
        });
      }
    }
  }
}

TEST(PlanSearch, KeepsExactlyThePlansWritableForAnotherTrainer) {
  const std::string cluster = cluster_file("plan_emit.yaml", "1GB", "50MB/s");
  const auto is_written = [](const auto& emit, const engine::Run& run) {
    try {
      emit(run);
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  const std::pair<const char*, const char*> cases[] = {
      {kDense, "model.dtype=f32"},
      {kMoe, "model.dtype=bf16"},
      {kDense, "plan.overlap_p2p_comm=true"},
      {kDense, "plan.shard.reshard_after_forward=false"}};
  for (const auto& [model, key] : cases) {
    const Trial of = trial(model, cluster, 8, model == kDense ? 4096 : 512, {key});
    const SearchSpace space = of.space({{"plan.micro_batch", "1"}, {"plan.recompute", "none"}});
    const engine::Run base = of.run_of({.dp = 4, .micro_batch = 1}, space);
    const auto megatron = interop::expressed_by_megatron(base);
    const auto torchtitan = interop::expressed_by_torchtitan(base);
    int64_t number = 0, all = 0, by_megatron = 0, by_torchtitan = 0;
    visit_all(space, [&](const PlanCandidate& plan) {
      if (number++ % (test::is_long() ? 1 : 5) != 0) return;
      engine::Run run;
      try {
        run = of.run_of(plan, space);
      } catch (const Error&) {
        return;  // no plan at all
      }
      ++all;
      by_megatron += megatron(plan) ? 1 : 0;
      by_torchtitan += torchtitan(plan) ? 1 : 0;
      EXPECT_EQ(megatron(plan), is_written(interop::emit_megatron, run)) << describe(plan, space);
      EXPECT_EQ(torchtitan(plan), is_written(interop::emit_torchtitan, run))
          << describe(plan, space);
    });
    EXPECT_GT(by_megatron, 0);
    EXPECT_LT(by_megatron, all);
    EXPECT_GT(by_torchtitan, 0);
    EXPECT_LT(by_torchtitan, all);
  }
}

/// A pipeline of torchtitan in bf16 has FSDP: parameters gathered once a step, whole gradients.
TEST(PlanSearch, FindsPipelinesOfTorchtitanWithFsdp) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const Trial of =
      trial(kDense, cluster_file("plan_titan.yaml", "1GB", "2MB/s"), 8, 32, {"model.dtype=bf16"});
  SearchSpace space = of.space(narrowed({{"plan.tp", "1"}, {"plan.recompute", "none"}}));
  const engine::Run base = of.run_of({.dp = 4, .micro_batch = 1}, space);
  space.expressible = interop::expressed_by_torchtitan(base);
  expect_exhaustive(of, space);
  const PlanCandidate best = best_of(of, space, false).best.front().plan;
  EXPECT_EQ(best.pp, 2) << describe(best, space);
  EXPECT_EQ(best.shard, kGatheredOnce) << describe(best, space);
  const parallel::Sharding shard = of.run_of(best, space).plan.shard;
  EXPECT_EQ(shard.params, parallel::Shard::all);
  EXPECT_EQ(shard.grads, parallel::Shard::none);
  EXPECT_FALSE(shard.reshard_after_forward);
  EXPECT_FALSE(shard.reshard_after_backward);
  // A run that says when to gather keeps to it.
  const Trial frees = trial(kDense, cluster_file("plan_titan_frees.yaml", "1GB", "2MB/s"), 8, 32,
                            {"model.dtype=bf16", "plan.shard.reshard_after_forward=true"});
  EXPECT_FALSE(
      interop::expressed_by_torchtitan(frees.run_of({.dp = 4, .micro_batch = 1}, space))(best));
}

/// Parameters gathered once a step take the memory of ZeRO-1, and their parts beside them.
TEST(PlanSearch, EstimatesMemoryOfParametersGatheredOnce) {
  const Trial of = trial(kDense, cluster_file("plan_once.yaml", "1GB", "100MB/s"), 16, 32);
  const SearchSpace space = of.space({});
  const cost::CostModel costs = of.costs();
  Estimator estimator(space, of.graph(), costs, {});
  const std::vector<parallel::BuiltIn>& schedules = parallel::built_in_schedules();
  PlanCandidate mesh{.pp = 2, .dp = 2, .micro_batch = 1};
  int64_t all = 0;
  for (const Pipeline& pipeline : pipelines(space, mesh)) {
    mesh.schedule = pipeline.schedule;
    mesh.chunks = pipeline.chunks;
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      mesh.recompute = recompute;
      PlanCandidate zero1 = mesh, once = mesh;
      zero1.shard = kZero1;
      once.shard = kGatheredOnce;
      const Outcome outcome = *of.simulate(once, space, [] { return false; });
      const Outcome of_zero1 = *of.simulate(zero1, space, [] { return false; });
      const Estimate estimate = estimator.estimate(once);
      const char* name = schedules[once.schedule].name;
      EXPECT_LE(estimate.lower_bound_s, outcome.step_s * (1 + 1e-6)) << name;
      EXPECT_LE(estimate.lower_bound_bytes, static_cast<double>(outcome.bytes)) << name;
      EXPECT_GT(outcome.bytes, of_zero1.bytes) << name;
      EXPECT_GT(estimate.bytes, estimator.estimate(zero1).bytes) << name;
      EXPECT_NEAR(outcome.step_s / of_zero1.step_s, 1, 0.1) << name;
      ++all;
    }
  }
  EXPECT_GE(all, 8);
}

TEST(PlanSearch, EndsWithTheBestSoFar) {
  // So many plans that the search never ends before it is asked to.
  const Trial dense =
      trial(kDense, cluster_file("plan_best_so_far.yaml", "1GB", "50MB/s"), 64, 256);
  const SearchSpace space = dense.space({});
  SearchOptions options;
  options.threads = 1;
  bool ask = false;
  options.progress = [&](const Counts& counts, const Outcome* best, const std::string&) {
    ask = ask || (best && counts.simulated > 0);
  };
  options.stop = [&] { return ask; };
  const SearchResult found = search(dense, space, options);
  ASSERT_FALSE(found.best.empty());
  EXPECT_FALSE(found.complete);
  EXPECT_EQ(found.ended, "it was interrupted");
  EXPECT_GT(found.counts.left + found.counts.meshes_left, 0);
  EXPECT_EQ(found.counts.plans, found.counts.too_large + found.counts.slower +
                                    found.counts.simulated + found.counts.left);
  EXPECT_LE(found.lower_bound_s, found.best.front().step_s);
}

TEST(PlanSearch, HasAPlanWheneverItIsStopped) {
  const Trial dense = trial(kDense, cluster_file("plan_stopped.yaml", "1GB", "50MB/s"), 8, 32);
  const SearchSpace space = dense.space({{"plan.recompute", "none"}});
  for (const bool asked : {true, false}) {
    SearchOptions options;
    options.threads = 1;
    options.stop = [&] { return asked; };
    options.time_limit_s = asked ? 0 : 1e-6;
    std::string told;
    options.progress = [&](const Counts&, const Outcome*, const std::string& ended) {
      told = ended;
    };
    const SearchResult found = search(dense, space, options);
    ASSERT_FALSE(found.best.empty());
    EXPECT_TRUE(found.best.front().fits);
    EXPECT_FALSE(found.complete);
    EXPECT_EQ(found.ended, asked ? "it was interrupted" : "its time is up");
    EXPECT_EQ(told, found.ended);
    EXPECT_EQ(found.counts.plans, found.counts.too_large + found.counts.slower +
                                      found.counts.simulated + found.counts.left);
  }
}

TEST(PlanSearch, ContinuesAfterAStopUntilAPlanFits) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const std::map<std::string, std::string> given = {
      {"plan.micro_batch", "2"}, {"plan.all_reduce", "native"}, {"plan.pp", "2"}};
  const Trial roomy = trial(kDense, cluster_file("plan_roomy.yaml", "1GB", "100MB/s"), 8, 64);
  const SearchResult all = best_of(roomy, roomy.space(given), true);
  int64_t least = all.best.front().bytes;
  for (const Outcome& outcome : all.best) {
    least = std::min(least, outcome.bytes);
  }
  SearchOptions options;
  options.stop = [] { return true; };
  const auto within = [&](int64_t bytes) {
    const std::string cluster =
        cluster_file("plan_least.yaml", std::to_string(bytes) + "B", "100MB/s");
    const Trial tight = trial(kDense, cluster, 8, 64);
    return search(tight, tight.space(given), options);
  };
  // With the least memory of any plan, few fit; with a byte less, none.
  const SearchResult found = within(least);
  ASSERT_FALSE(found.best.empty());
  EXPECT_LE(found.best.front().bytes, least);
  const SearchResult none = within(least - 1);
  EXPECT_TRUE(none.best.empty());
  EXPECT_TRUE(none.complete);
  EXPECT_EQ(none.ended, "");
}

TEST(PlanSearch, GivenKeysAreKept) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "hundreds of plans are simulated: minutes under sanitizers";
  }
  const Trial dense = trial(kDense, cluster_file("plan_given.yaml", "1GB", "50MB/s"), 8, 32);
  const SearchSpace space = dense.space(narrowed({{"plan.tp", "2"}, {"plan.recompute", "full"}}));
  const SearchResult found = best_of(dense, space, false);
  for (const Outcome& outcome : found.best) {
    EXPECT_EQ(outcome.plan.tp, 2);
    EXPECT_EQ(outcome.plan.recompute, Recompute::full);
  }
  ASSERT_FALSE(found.best.empty());
}

TEST(PlanSearch, TheWrittenRunParsesToTheSimulatedOne) {
  const Trial dense = trial(kDense, cluster_file("plan_run.yaml", "1GB", "50MB/s"), 8, 32);
  const SearchSpace space =
      dense.space(narrowed({{"plan.pp", "2"}, {"plan.tp", "1"}, {"plan.recompute", "none"}}));
  const SearchResult found = best_of(dense, space, false);
  const engine::Run run = dense.run_of(found.best.front().plan, space);
  const engine::Run again =
      engine::parse_run(engine::run_yaml(run, "a comment\nof two lines"), "again", {});
  EXPECT_EQ(again.resolved.to_json_text(), run.resolved.to_json_text());
}

}  // namespace
}  // namespace hocket::planner

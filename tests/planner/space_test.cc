// SPDX-License-Identifier: Apache-2.0
// Layers on stages and sequences on replicas, against every way to lay them; where ep may lie.
#include "planner/space.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace hocket::planner {
namespace {

/// The least that the busiest rank can have to do, of all ways to lay the layers.
double by_brute_force(const LayerCosts& costs, const Stages& stages,
                      const std::vector<double>& speed) {
  const auto count = static_cast<size_t>(stages.count());
  double best = std::numeric_limits<double>::infinity();
  std::vector<int64_t> layers;
  const std::function<void(int64_t)> lay = [&](int64_t left) {
    if (layers.size() + 1 == count) {
      layers.push_back(left);
      best = std::min(best, busiest_rank(costs, stages, speed, layers));
      layers.pop_back();
      return;
    }
    const auto behind = static_cast<int64_t>(count - layers.size()) - 1;
    for (int64_t here = 1; here + behind <= left; ++here) {
      layers.push_back(here);
      lay(left - here);
      layers.pop_back();
    }
  };
  lay(std::ssize(costs.layer));
  return best;
}

TEST(PlanSpace, BalancedLayersAreTheBestOfAll) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const size_t stages = 1 + rng.below(5);
    LayerCosts costs;
    for (size_t layer = stages + rng.below(6); layer > 0; --layer) {
      costs.layer.push_back(static_cast<double>(1 + rng.below(5)));
    }
    costs.embedding = static_cast<double>(rng.below(3));
    costs.head = static_cast<double>(rng.below(8));
    std::vector<double> speed;
    for (size_t stage = 0; stage < stages; ++stage) {
      speed.push_back(0.5 * static_cast<double>(1 + rng.below(3)));
    }
    const Stages one_each{.pp = static_cast<int32_t>(stages)};
    const std::vector<int64_t> layers = balanced_layers(costs, one_each, speed);
    ASSERT_EQ(layers.size(), stages);
    EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}), std::ssize(costs.layer));
    EXPECT_EQ(busiest_rank(costs, one_each, speed, layers), by_brute_force(costs, one_each, speed));
  }
}

TEST(PlanSpace, LayersOfSeveralChunksAreLaidByTheSpeedOfTheirRanks) {
  // Around the ranks, and in a V: with layers that are alike the best of all ways.
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const bool is_v = rng.below(2) == 1;
    const Stages stages{.pp = static_cast<int32_t>(2 + rng.below(2)),
                        .chunks = static_cast<int32_t>(is_v ? 2 : 2 + rng.below(2)),
                        .is_v = is_v};
    LayerCosts costs;
    costs.layer.assign(static_cast<size_t>(stages.count()) + rng.below(8), 2.0);
    costs.head = static_cast<double>(rng.below(6));
    std::vector<double> speed;
    for (int32_t rank = 0; rank < stages.pp; ++rank) {
      speed.push_back(0.5 * static_cast<double>(1 + rng.below(3)));
    }
    const std::vector<int64_t> layers = balanced_layers(costs, stages, speed);
    ASSERT_EQ(std::ssize(layers), stages.count());
    EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}), std::ssize(costs.layer));
    EXPECT_EQ(busiest_rank(costs, stages, speed, layers), by_brute_force(costs, stages, speed));
  }
  // The fast rank has the first and the last stage, of which neither is much longer.
  const LayerCosts costs{std::vector<double>(24, 1), 0, 1};
  const std::vector<int64_t> v =
      balanced_layers(costs, {.pp = 2, .chunks = 2, .is_v = true}, {1, 0.5});
  EXPECT_EQ(v[0] + v[3], 16);
  EXPECT_LE(std::max(v[0], v[3] + 1), 9);
}

TEST(PlanSpace, GivenLayersAreOfPipelinesWithAsManyStages) {
  Space space;
  space.model.num_layers = 8;
  space.ranks = space.global_batch = 8;
  space.given = {{"plan.pp_layers", "[5, 3]"}};
  Choice mesh;
  mesh.dp = 8;
  EXPECT_TRUE(pipelines(space, mesh).empty());
  mesh.pp = 2;
  mesh.dp = 4;
  const std::vector<Pipeline> found = pipelines(space, mesh);
  EXPECT_FALSE(found.empty());
  for (const Pipeline& pipeline : found) {
    EXPECT_EQ(pipeline.chunks, 1);
  }
}

TEST(PlanSpace, AHeavyHeadTakesLayersFromTheLastStage) {
  const LayerCosts costs{{1, 1, 1, 1, 1, 1, 1, 1}, 0, 2};
  const std::vector<double> even = {1, 1};
  EXPECT_EQ(balanced_layers(costs, {.pp = 2}, even), (std::vector<int64_t>{5, 3}));
  const std::vector<double> uneven = {1, 0.25};
  EXPECT_EQ(balanced_layers(costs, {.pp = 2}, uneven), (std::vector<int64_t>{7, 1}));
}

TEST(PlanSpace, DealtSequencesAreTheBestOfAll) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<double> speed;
    for (size_t replica = 1 + rng.below(4); replica > 0; --replica) {
      speed.push_back(0.25 * static_cast<double>(1 + rng.below(4)));
    }
    const int64_t sequences = std::ssize(speed) + static_cast<int64_t>(rng.below(8));
    const std::vector<int64_t> dealt = dealt_by_speed(sequences, speed);
    ASSERT_EQ(dealt.size(), speed.size());
    EXPECT_EQ(std::accumulate(dealt.begin(), dealt.end(), int64_t{0}), sequences);
    double best = std::numeric_limits<double>::infinity();
    std::vector<int64_t> samples;
    const std::function<void(int64_t)> deal = [&](int64_t left) {
      if (samples.size() + 1 == speed.size()) {
        samples.push_back(left);
        best = std::min(best, longest_replica(samples, speed));
        samples.pop_back();
        return;
      }
      const auto behind = static_cast<int64_t>(speed.size() - samples.size()) - 1;
      for (int64_t here = 1; here + behind <= left; ++here) {
        samples.push_back(here);
        deal(left - here);
        samples.pop_back();
      }
    };
    deal(sequences);
    EXPECT_EQ(longest_replica(dealt, speed), best);
  }
}

TEST(PlanSpace, ReplicasOfOneSpeedAreNeighboursWithAsManySequences) {
  EXPECT_EQ(dealt_by_speed(28, {1, 1, 0.4, 0.4}), (std::vector<int64_t>{10, 10, 4, 4}));
  EXPECT_EQ(dealt_by_speed(7, {1, 1, 1, 1}), (std::vector<int64_t>{2, 2, 2, 1}));
}

TEST(PlanSpace, AReplicaIsAsFastAsItsSlowestStage) {
  Space space;
  space.ranks = 8;
  // Two stages of two replicas of two ranks: of the second replica one rank is slow.
  space.speed = {1, 1, 1, 0.5, 1, 1, 1, 1};
  const LayerCosts costs{{1, 1, 1, 1}, 0, 0};
  EXPECT_EQ(replica_speeds(space, 2, costs, {2, 2}), (std::vector<double>{0.5, 0.25}));
  // With a layer less on its stage it is done sooner.
  EXPECT_EQ(replica_speeds(space, 2, costs, {1, 3}), (std::vector<double>{1.0 / 3, 1.0 / 3}));
}

TEST(PlanSpace, ExpertsTakeTwoStepsWhereTheyAreOnSeveralNodes) {
  Space space;
  space.model.num_experts = 64;
  space.ranks = 64;
  space.ranks_per_node = 8;
  Choice mesh;
  mesh.dp = 64;
  mesh.ep = 64;
  EXPECT_EQ(inner_experts(space, mesh), (std::vector<int32_t>{2, 4, 8}));
  mesh.ep = 8;  // on one node
  EXPECT_TRUE(inner_experts(space, mesh).empty());
  mesh.dp = 32;
  mesh.tp = 2;
  EXPECT_EQ(inner_experts(space, mesh), (std::vector<int32_t>{2, 4}));
  mesh.ep = 32;
  space.model.num_experts = 48;  // 32 does not divide them
  EXPECT_TRUE(inner_experts(space, mesh).empty());
  space.model.num_experts = 64;
  space.given = {{"plan.ep_inner", "1"}};
  EXPECT_TRUE(inner_experts(space, mesh).empty());
}

}  // namespace
}  // namespace hocket::planner

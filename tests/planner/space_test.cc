// SPDX-License-Identifier: Apache-2.0
// Layers on stages and sequences on replicas, against every way to assign them; where ep may lie.
#include "planner/space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "base/rng.h"
#include "planner/model_table.h"

namespace hocket::planner {
namespace {

/// Visits every way to assign layers to stages, at least one each except for the first and the
/// last.
void visit_ways(int64_t all, size_t stages,
                const std::function<void(const std::vector<int64_t>&)>& visit) {
  std::vector<int64_t> layers;
  const std::function<void(int64_t)> assign_rest = [&](int64_t left) {
    if (layers.size() + 1 == stages) {
      layers.push_back(left);
      visit(layers);
      layers.pop_back();
      return;
    }
    for (int64_t here = layers.empty() ? 0 : 1; here <= left; ++here) {
      layers.push_back(here);
      assign_rest(left - here);
      layers.pop_back();
    }
  };
  assign_rest(all);
}

/// The least that the busiest rank can have to do.
double by_brute_force(const LayerCosts& costs, const Stages& stages,
                      const std::vector<double>& speed) {
  double best = std::numeric_limits<double>::infinity();
  visit_ways(std::ssize(costs.layer), static_cast<size_t>(stages.count()),
             [&](const std::vector<int64_t>& layers) {
               best = std::min(best, busiest_rank(costs, stages, speed, layers));
             });
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

/// Layers of a few types on up to five stages, on devices that may differ.
StageLoads some_loads(Rng* rng) {
  StageLoads loads;
  const size_t stages = 1 + rng->below(5), types = kFirstLayerType + 1 + rng->below(2);
  for (size_t layers = stages + rng->below(6); layers > 0; --layers) {
    loads.type_of.push_back(kFirstLayerType + rng->below(types - kFirstLayerType));
  }
  const auto some = [&](int least, int more) {
    return static_cast<double>(least + static_cast<int>(rng->below(static_cast<uint64_t>(more))));
  };
  loads.seconds = {some(0, 3), some(0, 8)};
  loads.working = {some(0, 2), some(0, 4)};
  while (loads.seconds.size() < types) {
    loads.seconds.push_back(some(1, 4));
    loads.working.push_back(some(0, 3));
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    loads.speed.push_back(0.5 * some(1, 3));
    std::vector<double>& bytes = loads.bytes.emplace_back();
    for (size_t type = 0; type < types; ++type) {
      bytes.push_back(some(0, 6));
    }
  }
  return loads;
}

/// Returns the sum of the squared stage times, which is smaller for more even stages.
double squares(const StageLoads& loads, const std::vector<int64_t>& layers) {
  double sum = 0;
  size_t next = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    double seconds = stage == 0 ? loads.seconds[kEmbedding] : 0;
    seconds += stage + 1 == layers.size() ? loads.seconds[kHead] : 0;
    for (int64_t i = 0; i < layers[stage]; ++i) {
      seconds += loads.seconds[loads.type_of[next++]];
    }
    sum += seconds / loads.speed[stage] * seconds / loads.speed[stage];
  }
  return sum;
}

TEST(PlanSpace, LayersAreSpreadByTimeWithinTheAvailableMemory) {
  int none = 0, bound = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const StageLoads loads = some_loads(&rng);
    const double limit = static_cast<double>(2 + rng.below(20));
    const auto all = std::ssize(loads.type_of);
    double least = 1e9, slowest = 1e9, whatever = 1e9, alike = 1e9;
    visit_ways(all, loads.speed.size(), [&](const std::vector<int64_t>& layers) {
      least = std::min(least, fullest_stage(loads, layers));
      whatever = std::min(whatever, slowest_stage(loads, layers));
      if (fullest_stage(loads, layers) <= limit) {
        slowest = std::min(slowest, slowest_stage(loads, layers));
      }
    });
    visit_ways(all, loads.speed.size(), [&](const std::vector<int64_t>& layers) {
      if (fullest_stage(loads, layers) > limit || slowest_stage(loads, layers) > slowest) return;
      alike = std::min(alike, squares(loads, layers));
    });
    EXPECT_EQ(lower_bound_bytes(loads), least);
    none += least > limit ? 1 : 0;
    bound += least <= limit && slowest > whatever ? 1 : 0;
    const std::optional<std::vector<int64_t>> assigned = assign_layers(loads, limit);
    ASSERT_EQ(assigned.has_value(), least <= limit);
    if (!assigned) continue;
    EXPECT_EQ(std::accumulate(assigned->begin(), assigned->end(), int64_t{0}), all);
    EXPECT_LE(fullest_stage(loads, *assigned), limit);
    EXPECT_EQ(slowest_stage(loads, *assigned), slowest);
    EXPECT_NEAR(squares(loads, *assigned), alike, 1e-6 * alike);
  }
  EXPECT_GT(none, 10);
  EXPECT_GT(bound, 10);
}

TEST(PlanSpace, AmongEquallyFastLayersAreSpreadMostEvenly) {
  // The head takes 1.4 layers: greedily, stages would have four, four, ..
  StageLoads loads{.type_of = std::vector<size_t>(48, kFirstLayerType),
                   .seconds = {0, 1.4, 1},
                   .speed = std::vector<double>(16, 1)};
  EXPECT_EQ(*assign_layers(loads, 1e9),
            (std::vector<int64_t>{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 2}));
  // With a head of four layers, its stage has none.
  loads.type_of.resize(24);
  loads.speed.resize(8);
  loads.seconds[kHead] = 4;
  EXPECT_EQ(*assign_layers(loads, 1e9), (std::vector<int64_t>{3, 3, 3, 3, 4, 4, 4, 0}));
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
    EXPECT_DOUBLE_EQ(busiest_rank(costs, stages, speed, layers),
                     by_brute_force(costs, stages, speed));
  }
  // The fast rank has the first and the last stage, and neither is much longer.
  const LayerCosts costs{std::vector<double>(24, 1), 0, 1};
  const std::vector<int64_t> v =
      balanced_layers(costs, {.pp = 2, .chunks = 2, .is_v = true}, {1, 0.5});
  EXPECT_EQ(v[0] + v[3], 16);
  EXPECT_LE(std::max(v[0], v[3] + 1), 9);
}

TEST(PlanSpace, EqualLayersAreAssignedToRanksWithSeveralStages) {
  int none = 0, bound = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto some = [&](uint64_t least, uint64_t more) {
      return static_cast<double>(least + rng.below(more));
    };
    const bool is_v = rng.below(2) == 1;
    const Stages lie{.pp = static_cast<int32_t>(2 + rng.below(2)), .chunks = 2, .is_v = is_v};
    const auto stages = static_cast<size_t>(lie.count());
    const auto layers = static_cast<int64_t>(stages + rng.below(6));
    std::vector<SharedStages> ranks(static_cast<size_t>(lie.pp));
    for (int64_t stage = 0; stage < lie.count(); ++stage) {
      ranks[static_cast<size_t>(lie.rank_of(stage))].stages.push_back(stage);
    }
    for (SharedStages& rank : ranks) {
      rank = {rank.stages, some(0, 6), some(1, 3), some(0, 6), some(1, 4)};
    }
    const double limit = some(6, 25);
    const auto most = [&](const std::vector<int64_t>& assigned, bool of_bytes) {
      double found = 0;
      for (const SharedStages& rank : ranks) {
        double count = 0;
        for (const int64_t stage : rank.stages) {
          count += static_cast<double>(assigned[static_cast<size_t>(stage)]);
        }
        found = std::max(found, of_bytes ? rank.bytes + count * rank.layer_bytes
                                         : rank.seconds + count * rank.layer_seconds);
      }
      return found;
    };
    double least = 1e9, slowest = 1e9, whatever = 1e9;
    visit_ways(layers, stages, [&](const std::vector<int64_t>& assigned) {
      least = std::min(least, most(assigned, true));
      whatever = std::min(whatever, most(assigned, false));
      if (most(assigned, true) <= limit) {
        slowest = std::min(slowest, most(assigned, false));
      }
    });
    EXPECT_EQ(most(assign_equal_layers_by_bytes(layers, ranks), true), least);
    none += least > limit ? 1 : 0;
    bound += least <= limit && slowest > whatever ? 1 : 0;
    const std::optional<std::vector<int64_t>> assigned = assign_equal_layers(layers, ranks, limit);
    ASSERT_EQ(assigned.has_value(), least <= limit);
    if (!assigned) continue;
    EXPECT_EQ(std::accumulate(assigned->begin(), assigned->end(), int64_t{0}), layers);
    EXPECT_GE(*std::min_element(assigned->begin() + 1, assigned->end() - 1), 1);
    EXPECT_LE(most(*assigned, true), limit);
    EXPECT_EQ(most(*assigned, false), slowest);
  }
  EXPECT_GT(none, 10);
  EXPECT_GT(bound, 10);
}

TEST(PlanSpace, GivenLayersNeedAPipelineWithAsManyStages) {
  SearchSpace space;
  space.model.num_layers = 8;
  space.ranks = space.global_batch = 8;
  space.given = {{"plan.pp_layers", "[5, 3]"}};
  PlanCandidate mesh;
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
  EXPECT_EQ(balanced_layers(costs, {.pp = 2}, uneven), (std::vector<int64_t>{8, 0}));
}

TEST(PlanSpace, SequencesBySpeedEqualBruteForce) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<double> speed;
    for (size_t replica = 1 + rng.below(4); replica > 0; --replica) {
      speed.push_back(0.25 * static_cast<double>(1 + rng.below(4)));
    }
    const int64_t sequences = std::ssize(speed) + static_cast<int64_t>(rng.below(8));
    const std::vector<int64_t> by_speed = sequences_by_speed(sequences, speed);
    ASSERT_EQ(by_speed.size(), speed.size());
    EXPECT_EQ(std::accumulate(by_speed.begin(), by_speed.end(), int64_t{0}), sequences);
    double best = std::numeric_limits<double>::infinity();
    std::vector<int64_t> samples;
    const std::function<void(int64_t)> distribute_rest = [&](int64_t left) {
      if (samples.size() + 1 == speed.size()) {
        samples.push_back(left);
        best = std::min(best, longest_replica(samples, speed));
        samples.pop_back();
        return;
      }
      const auto behind = static_cast<int64_t>(speed.size() - samples.size()) - 1;
      for (int64_t here = 1; here + behind <= left; ++here) {
        samples.push_back(here);
        distribute_rest(left - here);
        samples.pop_back();
      }
    };
    distribute_rest(sequences);
    EXPECT_EQ(longest_replica(by_speed, speed), best);
  }
}

TEST(PlanSpace, ReplicasOfOneSpeedAreNeighboursWithAsManySequences) {
  EXPECT_EQ(sequences_by_speed(28, {1, 1, 0.4, 0.4}), (std::vector<int64_t>{10, 10, 4, 4}));
  EXPECT_EQ(sequences_by_speed(7, {1, 1, 1, 1}), (std::vector<int64_t>{2, 2, 2, 1}));
}

TEST(PlanSpace, GivenSamplesExcludeAGivenMicroBatch) {
  SearchSpace space;
  space.model.num_layers = 8;
  space.ranks = 2;
  space.global_batch = 8;
  space.given = {{"plan.dp_samples", "[3, 1]"}};
  PlanCandidate mesh;
  mesh.dp = 2;
  const std::vector<PlanCandidate> found = micro_batches(space, mesh);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].sequences, 4);
  space.given["plan.micro_batch"] = "2";
  EXPECT_TRUE(micro_batches(space, mesh).empty());
}

/// Ranks of cp with whole sequences are those of dp in another mesh.
TEST(PlanSpace, NoRanksOfCpWithWholeSequencesUnlessBothAreGiven) {
  SearchSpace space;
  space.model.num_layers = 8;
  space.ranks = 2;
  space.global_batch = 12;
  PlanCandidate mesh;
  mesh.cp = 2;
  const auto sizes = [&] {
    std::vector<int32_t> found;
    for (const PlanCandidate& plan : micro_batches(space, mesh)) {
      found.push_back(plan.micro_batch);
    }
    return found;
  };
  EXPECT_EQ(sizes(), (std::vector<int32_t>{1, 3}));
  space.given = {{"plan.micro_batch", "4"}};
  EXPECT_EQ(sizes(), (std::vector<int32_t>{}));
  space.given["plan.cp"] = "2";
  EXPECT_EQ(sizes(), (std::vector<int32_t>{4}));
}

TEST(PlanSpace, MessagesBlockWhereAnotherTrainerWaits) {
  SearchSpace space;
  const PlanCandidate plan{.pp = 2};
  const auto blocks = [&] {
    const std::vector<std::string> keys = assignments(plan, space);
    return std::count(keys.begin(), keys.end(), "plan.overlap_p2p_comm=false") == 1;
  };
  EXPECT_FALSE(blocks());
  space.waits_for_messages = [](const PlanCandidate&) { return true; };
  EXPECT_TRUE(blocks());
}

TEST(PlanSpace, ParametersAreGatheredOnceWhereAnotherTrainerLacksZero1) {
  SearchSpace space;
  space.ranks = space.ranks_per_node = 4;
  space.global_batch = 8;
  space.seq_len = 32;
  const PlanCandidate mesh{.pp = 2, .dp = 2, .micro_batch = 1};
  const auto plans = [&] {
    std::vector<PlanCandidate> found;
    visit_rest(space, mesh, [&](const PlanCandidate& plan) {
      if (plan.shard == kGatheredOnce) {
        found.push_back(plan);
      }
    });
    return found;
  };
  EXPECT_TRUE(plans().empty());
  space.expressible = [](const PlanCandidate&) { return true; };
  EXPECT_TRUE(plans().empty());
  space.expressible = [](const PlanCandidate& plan) { return plan.shard != kZero1; };
  ASSERT_EQ(plans().size(), 3u);  // with every recomputation
  const std::vector<std::string> keys = assignments(plans().front(), space);
  for (const char* key : {"plan.shard.params=all", "plan.shard.reshard_after_forward=false",
                          "plan.shard.reshard_after_backward=false"}) {
    EXPECT_EQ(std::count(keys.begin(), keys.end(), key), 1) << key;
  }
  space.given = {{"plan.shard.grads", "none"}, {"plan.shard.params", "all"}};
  EXPECT_EQ(plans().size(), 3u);
  space.given = {{"plan.shard.grads", "all"}};
  EXPECT_TRUE(plans().empty());
  space.given = {{"plan.shard.params", "none"}};
  EXPECT_TRUE(plans().empty());
}

TEST(PlanSpace, OddSequencesExcludeMeshesThatSplitThem) {
  SearchSpace space;
  space.model.num_layers = space.model.num_heads = 8;
  space.ranks = space.global_batch = 8;
  space.seq_len = 8192;
  const auto has_cp = [](const PlanCandidate& mesh) { return mesh.cp > 1; };
  std::vector<PlanCandidate> even = meshes(space);
  EXPECT_GT(std::erase_if(even, has_cp), 0U);
  std::erase_if(even, [](const PlanCandidate& mesh) { return mesh.sequence_parallel; });
  space.seq_len = 8191;
  EXPECT_FALSE(even.empty());
  EXPECT_EQ(meshes(space), even);
}

TEST(PlanSpace, AReplicaIsAsFastAsItsSlowestStage) {
  SearchSpace space;
  space.ranks = 8;
  // Two stages of two replicas of two ranks: of the second replica one rank is slow.
  space.speed = {1, 1, 1, 0.5, 1, 1, 1, 1};
  const LayerCosts costs{{1, 1, 1, 1}, 0, 0};
  EXPECT_EQ(replica_speeds(space, 2, costs, {2, 2}), (std::vector<double>{0.5, 0.25}));
  // With a layer less on its stage it is done sooner.
  EXPECT_EQ(replica_speeds(space, 2, costs, {1, 3}), (std::vector<double>{1.0 / 3, 1.0 / 3}));
}

TEST(PlanSpace, ExpertsTakeTwoStepsWhereTheyAreOnSeveralNodes) {
  SearchSpace space;
  space.model.num_experts = 64;
  space.ranks = 64;
  space.ranks_per_node = 8;
  PlanCandidate mesh;
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

// SPDX-License-Identifier: Apache-2.0
// Partial replays of random programs against full ones.
#include "sim/partial.h"

#include <gtest/gtest.h>

#include "tests/cluster_util.h"
#include "tests/sim/fluid.h"
#include "tests/sim/random_program.h"
#include "tests/sim/sim_util.h"

namespace hocket::sim {
namespace {

/// Returns speedup factors per kind, most of them 1.
std::vector<double> some_factors(const Program& p, std::mt19937& rng, int one_in) {
  const double choices[] = {2, 1.5, 1e9, 0.5, 3};
  std::vector<double> factors;
  for (size_t kind = 0; kind < p.kinds.size(); ++kind) {
    factors.push_back(rng() % uint32_t(one_in) == 0 ? choices[rng() % 5] : 1);
  }
  return factors;
}

TEST(SimPartial, MatchesAFullReplay) {
  int64_t looked_at = 0;
  int64_t all = 0;
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program p = random_program(seed);
    FixedDurations d(p);
    d.kinds = 1 + int32_t(seed % 3);
    const ReplayOptions options{.all_ranks = seed % 2 == 0};
    PartialReplay partial(p, d, options);
    EXPECT_EQ(partial.full().end_ns, replay(p, d, options).end_ns);
    std::mt19937 rng(seed);
    for (int change = 0; change < 5; ++change) {
      const std::vector<double> factors = some_factors(p, rng, 12);
      std::vector<int64_t> ends;
      const PartialReplay::Result answer = partial.faster(factors, &ends);
      ScaledDurations changed(p, d, factors);
      const Replay whole = replay(p, changed, options);
      ASSERT_EQ(ends, whole.end_of_ns);
      EXPECT_EQ(answer.end_ns, whole.end_ns);
      EXPECT_LE(answer.tasks, whole.num_tasks);
      looked_at += answer.tasks;
      all += whole.num_tasks;
    }
    // Nothing of one question remains for the next.
    const std::vector<double> none(p.kinds.size(), 1.0);
    const PartialReplay::Result same = partial.faster(none);
    EXPECT_EQ(same.end_ns, partial.full().end_ns);
    EXPECT_EQ(same.tasks, 0);
  }
  EXPECT_LT(looked_at, all * 2 / 3);
}

TEST(SimPartial, FallsBackToAFullReplayIfLinksAreShared) {
  Maker m({{"pp", 2}, {"dp", 2}});
  m.work(0, "w", 100);
  m.send(0, +1, 0, 1000, {0});
  m.recv(1, -1, 0);
  cost::Cluster cluster = test::cluster_of(2, 2);
  cluster.topology.adapters_per_node = 1;
  LinkDurations d(m.p, cluster, 0);
  d.fixed_share = 1;
  PartialReplay partial(m.p, d, {});
  EXPECT_EQ(partial.full().end_ns, 100 + 200 + 1600);
  std::vector<double> factors(m.p.kinds.size(), 1.0);
  factors[size_t(m.p.classes[0].tasks[1].kind.value())] = 2;
  const PartialReplay::Result answer = partial.faster(factors);
  EXPECT_EQ(answer.end_ns, 100 + 100 + 800);
  EXPECT_EQ(answer.tasks, partial.full().num_tasks);
}

}  // namespace
}  // namespace hocket::sim

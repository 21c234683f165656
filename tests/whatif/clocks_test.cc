// SPDX-License-Identifier: Apache-2.0
// Workers with different clocks, and matching of collectives with lost records. Whole traces are
// tested in tests/whatif/ranks_test.py.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "whatif/clocks.h"
#include "whatif/match_collectives.h"
#include "whatif/measured_run.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace {

struct Seen {
  int32_t worker, number;
  double start, end;
};

/// Returns a step of numbered ops of one name.
MeasuredRun run_of(const std::vector<Seen>& ops, int32_t workers) {
  MeasuredRun run;
  run.names = {"sum"};
  run.pattern_workers = workers;
  for (int32_t worker = 0; worker < workers; ++worker) {
    run.workers.push_back({worker, 0, worker, "rank"});
  }
  std::vector<Observed> seen;
  for (const Seen& op : ops) {
    Observed one;
    one.worker = op.worker;
    one.sequence = op.number;
    one.start = op.start;
    one.duration = op.end - op.start;
    seen.push_back(one);
  }
  assemble(std::move(seen), "test", &run);
  give_blocks({Traffic::collective}, &run);
  return run;
}

OpId op_of(const MeasuredRun& run, PatternWorkerId worker, int32_t number) {
  for (OpId op = 0; op < run.ops.size(); ++op) {
    if (run.ops[op].worker == worker && run.ops[op].sequence == number) return op;
  }
  return kNone;
}

void group(std::vector<std::pair<int32_t, int32_t>> members, bool eager, MeasuredRun* run) {
  std::vector<OpId> ops;
  for (const auto& [worker, number] : members) {
    ops.push_back(op_of(*run, worker, number));
    run->ops[ops.back()].group = run->groups.size();
  }
  run->groups.push_back({std::move(ops), false, eager});
}

/// Returns all collectives of all workers as one kind.
Collectives all_of(const MeasuredRun& run) {
  Collectives kind;
  for (OpId op = 0; op < run.ops.size(); ++op) {
    kind.of_worker[run.ops[op].worker].push_back(op);
  }
  return kind;
}

TEST(WhatifClocks, AreAlignedAlongAChainOfCollectivesAndMessages) {
  // Worker 1 shares a collective with worker 0 and shows 7 s more; 2 shares one with 1 and shows
  // 3 s less; 3 exchanges messages with 2, of 0.5 s there and back, and shows 20 s more.
  MeasuredRun run = run_of({{0, 0, 0, 2},
                            {1, 0, 8, 9},
                            {1, 1, 10, 12},
                            {2, 1, 1, 2},
                            {2, 2, 3, 3.1},
                            {3, 2, 26, 26.5},
                            {3, 3, 27, 27.1},
                            {2, 3, 4, 4.5}},
                           4);
  group({{0, 0}, {1, 0}}, false, &run);
  group({{1, 1}, {2, 1}}, false, &run);
  group({{2, 2}, {3, 2}}, true, &run);
  group({{3, 3}, {2, 3}}, true, &run);
  ASSERT_TRUE(set_clocks(&run));
  EXPECT_NEAR(run.start[run.at(op_of(run, 1, 0), 0)], 1, 1e-12);
  EXPECT_NEAR(run.start[run.at(op_of(run, 2, 1), 0)], 4, 1e-12);
  EXPECT_NEAR(run.start[run.at(op_of(run, 2, 2), 0)], 6, 1e-12);
  EXPECT_NEAR(run.start[run.at(op_of(run, 3, 2), 0)], 6, 1e-12);
  EXPECT_NEAR(run.measured_step[0], 7.5, 1e-12);
  settle_transfers(&run);
  EXPECT_FALSE(run.clocks_apart);
}

TEST(WhatifClocks, ReportsSetsOfRanksThatShareNoCollective) {
  MeasuredRun run = run_of({{0, 0, 0, 2}, {1, 0, 1, 2}, {2, 1, 50, 52}, {3, 1, 91, 92}}, 4);
  group({{0, 0}, {1, 0}}, false, &run);
  group({{2, 1}, {3, 1}}, false, &run);
  ASSERT_TRUE(set_clocks(&run));
  EXPECT_NEAR(run.start[run.at(op_of(run, 2, 1), 0)], 50, 1e-12);
  EXPECT_NEAR(run.start[run.at(op_of(run, 3, 1), 0)], 51, 1e-12);
  EXPECT_NE(run.dropped.notes[0].find("2 sets of ranks"), std::string::npos);
}

TEST(WhatifClocks, OneClockIsLeftAsItIs) {
  // A slightly later end of one member is not taken for a clock offset.
  MeasuredRun run = run_of({{0, 0, 0, 2}, {1, 0, 1, 2.2}}, 2);
  group({{0, 0}, {1, 0}}, false, &run);
  EXPECT_FALSE(set_clocks(&run));
  EXPECT_EQ(run.start[run.at(op_of(run, 1, 0), 0)], 1);
  EXPECT_TRUE(run.dropped.notes.empty());
}

TEST(WhatifClocks, ReportsDeviationsThatNoOffsetExplains) {
  std::vector<Seen> ops;
  for (int32_t k = 0; k < 20; ++k) {
    const double jitter = k % 2 == 0 ? 3.0 * k : -2.0 * k;
    ops.push_back({0, k, 100.0 + k, 100.5 + k});
    ops.push_back({1, k, 100.0 + k + jitter, 100.5 + k + jitter});
  }
  MeasuredRun run = run_of(ops, 2);
  for (int32_t k = 0; k < 20; ++k) {
    group({{0, k}, {1, k}}, false, &run);
  }
  set_clocks(&run);
  settle_transfers(&run);
  EXPECT_TRUE(run.clocks_apart);
  EXPECT_NE(run.dropped.notes.back().find("no cause is named"), std::string::npos);
}

TEST(WhatifMeet, MatchesCollectivesByOverlapInTime) {
  // Three collectives; worker 1 lacks the second one, worker 2 the first.
  MeasuredRun run = run_of({{0, 0, 0, 3},
                            {0, 1, 10, 13},
                            {0, 2, 20, 23},
                            {1, 0, 2, 3},
                            {1, 1, 22, 23},
                            {2, 0, 11, 13},
                            {2, 1, 21, 23}},
                           3);
  match_collectives({all_of(run)}, /*timed=*/true, &run);
  ASSERT_EQ(run.groups.size(), 3u);
  const auto group_of = [&](PatternWorkerId worker, int32_t number) {
    return run.ops[op_of(run, worker, number)].group;
  };
  EXPECT_EQ(group_of(1, 0), group_of(0, 0));
  EXPECT_EQ(group_of(2, 0), group_of(0, 1));
  EXPECT_EQ(group_of(1, 1), group_of(0, 2));
  EXPECT_EQ(group_of(2, 1), group_of(0, 2));
  EXPECT_NE(run.dropped.notes[0].find("the other members of 2 collectives"), std::string::npos)
      << run.dropped.notes[0];
}

TEST(WhatifMeet, MatchesCollectivesByOrderOrByNumber) {
  const std::vector<Seen> ops = {{0, 0, 0, 1}, {0, 1, 2, 3}, {1, 1, 0, 3}};
  MeasuredRun run = run_of(ops, 2);
  match_collectives({all_of(run)}, /*timed=*/false, &run);
  EXPECT_EQ(run.ops[op_of(run, 1, 1)].group, run.ops[op_of(run, 0, 0)].group);
  run = run_of(ops, 2);
  Collectives kind = all_of(run);
  kind.numbered = true;
  match_collectives({kind}, /*timed=*/true, &run);
  EXPECT_EQ(run.ops[op_of(run, 1, 1)].group, run.ops[op_of(run, 0, 1)].group);
}

TEST(WhatifAssemble, AReplicaThatAlwaysLacksOpsIsLeftOut) {
  MeasuredRun run;
  run.names = {"a", "b"};
  run.replicas = 3;
  run.pattern_workers = 1;
  for (int32_t replica = 0; replica < 3; ++replica) {
    run.workers.push_back({replica, 0, replica, ""});
  }
  std::vector<Observed> seen;
  for (int32_t step = 0; step < 2; ++step) {
    for (int32_t replica = 0; replica < 3; ++replica) {
      for (int32_t name = 0; name < (replica == 1 ? 1 : 2); ++name) {
        Observed op;
        op.step = step;
        op.replica = replica;
        op.name = name;
        op.duration = 1 + replica;
        seen.push_back(op);
      }
    }
  }
  assemble(seen, "test", &run);
  EXPECT_EQ(run.replicas, 2);
  ASSERT_EQ(run.workers.size(), 2u);
  EXPECT_EQ(run.workers[1].rank, 2);
  EXPECT_EQ(run.workers[1].replica, 1);
  EXPECT_EQ(run.steps, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(run.duration, (std::vector<double>{1, 3, 1, 3, 1, 3, 1, 3}));
  EXPECT_EQ(run.dropped.events, 2);
}

}  // namespace
}  // namespace hocket::whatif

// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Shared links, slowdown on a device, and hosts that launch: timelines derived by hand, and random
// programs against a naive fluid simulation.
#include "sim/sharing.h"

#include <gtest/gtest.h>

#include "tests/cluster_util.h"
#include "tests/sim/fluid.h"
#include "tests/sim/random_program.h"
#include "tests/sim/sim_util.h"

namespace hocket::sim {
namespace {

/// Returns a cluster of `nodes` nodes. With `leaves`, two nodes share a leaf switch whose uplink
/// carries half of their traffic.
cost::Cluster cluster_of(int32_t nodes, int32_t per_node, int32_t adapters, bool leaves,
                         bool rails = false) {
  cost::Cluster c = test::cluster_of(nodes, per_node);
  c.topology.adapters_per_node = adapters;
  c.topology.rails = rails;
  if (leaves) {
    c.topology.levels = {test::leaves_of(2 * per_node, 2)};
  }
  return c;
}

// Ranks 0 and 1 of a node with one adapter send 1000 ns each to ranks 2 and 3 of another one: 200
// ns of latency, then 800 ns of bytes at half the speed.
TEST(SimSharing, MessagesShareAnAdapter) {
  Maker m({{"pp", 2}, {"dp", 2}});
  m.send(0, +1, 0, 1000);
  m.recv(1, -1, 0);
  LinkDurations d(m.p, cluster_of(2, 2, 1, false), 0);
  d.fixed_share = 1;
  Replay r = replay(m.p, d, {});
  EXPECT_TRUE(r.shares_links);
  EXPECT_TRUE(r.deduplicated);
  EXPECT_EQ(r.end_ns, 200 + 1600);
  EXPECT_EQ(replay(m.p, d, {.all_ranks = true}).end_ns, 200 + 1600);
  EXPECT_EQ(replay(m.p, d, {.share_links = false}).end_ns, 1000);
  // With an adapter each, or where both fit, nothing is shared and the transfer takes 1000 ns.
  LinkDurations apart(m.p, cluster_of(2, 2, 2, false), 0);
  apart.fixed_share = 1;
  r = replay(m.p, apart, {});
  EXPECT_FALSE(r.shares_links);
  EXPECT_EQ(r.end_ns, 1000);
  LinkDurations thin(m.p, cluster_of(2, 2, 1, false), 0);
  thin.fixed_share = 0.5;
  r = replay(m.p, thin, {});
  EXPECT_FALSE(r.shares_links);
  EXPECT_EQ(r.end_ns, 1000);
}

// An all-reduce over both nodes (1000: 200 of latency, 800 of bytes), and from 500 on a message out
// of the first one. Its bytes (800) start at 700. By then 500 of the all-reduce are done; the other
// 300 take 600 at half the speed, until 1300. 500 of the message are left then, until 1800.
TEST(SimSharing, RatesChangeWhenATransferStartsAndEnds) {
  Maker m({{"pp", 2}});
  m.collective(0, {"pp"}, 1000, {}, "all_reduce", {0, 1}, Lane::intra);
  const TaskId wait = m.work(0, "w", 500);
  m.send(0, +1, 0, 1000, {wait});
  m.collective(1, {"pp"}, 1000, {}, "all_reduce", {0, 1}, Lane::intra);
  m.recv(1, -1, 0);
  m.p.classes[0].tasks[2].lane = Lane::inter_tx;
  LinkDurations d(m.p, cluster_of(2, 1, 1, false), 0);
  d.fixed_share = 1;
  const Replay r = replay(m.p, d, {});
  EXPECT_EQ(timeline(m.p, r),
            "0 intra all_reduce 0..1300\n0 compute w 0..500\n0 inter_tx send 500..1800\n"
            "1 intra all_reduce 0..1300\n1 intra_rx recv 0..1800\n");
}

// Compute takes 1.5 times the time while its rank transfers. The all-reduce runs 0..600; by then
// 400 of w's 1000 are done, and the rest runs alone until 1200. Rank 1 computes nothing.
TEST(SimSharing, OverlapSlowsKernelsAndTransfers) {
  Maker m({{"pp", 2}});
  m.work(0, "w", 1000);
  m.collective(0, {"pp"}, 600, {}, "all_reduce", {0, 1});
  m.collective(1, {"pp"}, 600, {}, "all_reduce", {0, 1});
  EXPECT_EQ(timeline(m.p, run(m.p, {.compute_beside_transfer = 1.5})),
            "0 compute w 0..1200\n0 intra all_reduce 0..600\n1 intra all_reduce 0..600\n");
  // The transfer is slowed, too: it takes twice the time while rank 0 computes. w would end at 1500
  // if the transfer lasted until then, which would have done 750. It ends at 1200; w has done 800
  // by then.
  EXPECT_EQ(timeline(m.p, run(m.p, {.compute_beside_transfer = 1.5, .transfer_beside_compute = 2})),
            "0 compute w 0..1400\n0 intra all_reduce 0..1200\n1 intra all_reduce 0..1200\n");
}

// Ten tasks of 10 ns take 10 each behind a host that needs 25 for each launch. A task that the host
// runs itself (h, 100) is awaited: later launches begin at its end.
TEST(SimSharing, SmallTasksAreLaunchBound) {
  Maker m({{"dp", 2}});
  for (int i = 0; i < 10; ++i) {
    m.work(0, "w", 10);
  }
  Replay r = run(m.p, {.launch_ns = 25});
  EXPECT_TRUE(r.deduplicated);
  EXPECT_EQ(r.start_ns[9], 250);
  EXPECT_EQ(r.end_ns, 260);
  EXPECT_EQ(r.time[0].idle_ns, 160);
  int64_t launching = 0;
  for (const PathStep& step : r.path) {
    launching += step.launching ? step.end_ns - step.begin_ns : 0;
  }
  EXPECT_EQ(launching, 250);
  // A kernel of 300 gives the host time to run ahead: the tasks after it are launched when it ends.
  Maker ahead({{"dp", 1}});
  ahead.work(0, "long", 300);
  for (int i = 0; i < 9; ++i) {
    ahead.work(0, "w", 10);
  }
  EXPECT_EQ(run(ahead.p, {.launch_ns = 25}).end_ns, 25 + 300 + 9 * 10);
  Maker host({{"dp", 1}});
  const TaskId w = host.work(0, "w", 10);
  host.work(0, "h", 100, {w}, Lane::host);
  host.work(0, "w", 10);
  host.work(0, "w", 10);
  EXPECT_EQ(timeline(host.p, run(host.p, {.launch_ns = 25})),
            "0 compute w 25..35\n0 host h 35..135\n0 compute w 50..60\n0 compute w 75..85\n");
}

/// If ranks are threads, lanes of the host are threads beside that of the compute lane: on two
/// cores both run, on one each has half of it. With a device they take nothing from it.
TEST(SimSharing, HostLanesShareTheCoresOfThreads) {
  const auto ends = [](int32_t cores, double beside_transfer) {
    Maker m({{"dp", 1}});
    m.work(0, "w", 100);
    m.work(0, "h", 60, {}, Lane::host);
    return timeline(m.p, run(m.p, {.devices_per_node = 1,
                                   .cores_per_node = cores,
                                   .threads_per_rank = 1,
                                   .compute_beside_transfer = beside_transfer}));
  };
  EXPECT_EQ(ends(2, 1), "0 compute w 0..100\n0 host h 0..60\n");
  EXPECT_EQ(ends(1, 1), "0 compute w 0..160\n0 host h 0..120\n");
  EXPECT_EQ(ends(0, 2), "0 compute w 0..100\n0 host h 0..60\n");
}

/// Durations with four kernels for the op "grouped" and one for others.
class GroupedLaunches : public FixedDurations {
 public:
  explicit GroupedLaunches(const Program& p) : FixedDurations(p), p_(p) {}
  int64_t more_launches_ns(program::ClassId cls, TaskId task) override {
    return p_.kind(p_.classes[cls].tasks[task]).op == "grouped" ? 3 * 25 : 0;
  }

 private:
  const Program& p_;
};

TEST(SimSharing, EveryKernelOfATaskIsLaunched) {
  Maker m({{"dp", 1}});
  m.work(0, "grouped", 10);
  m.work(0, "w", 10);
  GroupedLaunches durations(m.p);
  EXPECT_EQ(timeline(m.p, replay(m.p, durations, {.launch_ns = 25})),
            "0 compute grouped 100..110\n0 compute w 125..135\n");
}

// The host awaits a task that produces sizes (600, launched at 50), and launches nothing meanwhile.
TEST(SimSharing, HostAwaitsSizeExchanges) {
  Maker m({{"pp", 2}});
  for (int rank = 0; rank < 2; ++rank) {
    m.work(rank, "w", 10);
    m.collective(rank, {"pp"}, 600, {}, "size_exchange", {0, 1});
    m.work(rank, "w", 10);
  }
  const std::string one =
      "0 compute w 25..35\n0 intra size_exchange 50..650\n0 compute w 675..685\n";
  const std::string text = timeline(m.p, run(m.p, {.launch_ns = 25}));
  EXPECT_NE(text.find(one), std::string::npos) << text;
}

/// Durations of a host that reads the result of the op "loss".
class ReadLosses : public FixedDurations {
 public:
  explicit ReadLosses(const Program& p) : FixedDurations(p), p_(p) {}
  bool host_reads(program::ClassId cls, TaskId task) override {
    return p_.kind(p_.classes[cls].tasks[task]).op == "loss";
  }

 private:
  const Program& p_;
};

// During the 300 of work the host runs far ahead, except for the tasks after the loss that it
// reads.
TEST(SimSharing, HostAwaitsResultsThatItReads) {
  Maker m({{"dp", 1}});
  m.work(0, "w", 300);
  m.work(0, "loss", 10);
  m.work(0, "w", 10);
  m.work(0, "w", 10);
  ReadLosses durations(m.p);
  EXPECT_EQ(timeline(m.p, replay(m.p, durations, {.launch_ns = 25})),
            "0 compute w 25..325\n0 compute loss 325..335\n0 compute w 360..370\n"
            "0 compute w 385..395\n");
  // If launches take no time, nothing is awaited.
  EXPECT_EQ(replay(m.p, durations, {}).end_ns, 330);
}

struct Case {
  Program program;
  cost::Cluster cluster;
  ReplayOptions options;
};

Case random_case(uint32_t seed, int most_dp = 4) {
  Case c{random_program(seed, 10'000, most_dp), {}, {.all_ranks = true}};
  std::mt19937 rng(seed * 7919);
  const auto below = [&](int n) { return int(rng() % uint32_t(n)); };
  const int32_t world = c.program.num_ranks();
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size <= world; ++size) {
    if (world % size == 0) {
      sizes.push_back(size);
    }
  }
  const int32_t per_node = sizes[size_t(below(int(sizes.size())))];
  const int32_t adapters = below(2) ? per_node : 1 + below(per_node);
  c.cluster = cluster_of(world / per_node, per_node, adapters, below(2), below(3) == 0);
  c.options.devices_per_node = per_node;
  if (below(3) == 0) {
    c.options.compute_beside_transfer = 1.3;
  }
  if (below(3) == 0) {
    c.options.transfer_beside_compute = 1.25;
  }
  return c;
}

TEST(SimSharing, RandomProgramsMatchANaiveFluidSimulation) {
  // Both round every end up to whole nanoseconds, in steps of about a million.
  int shared = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c = random_case(seed);
    if (seed % 4 == 0) {
      c.options.cores_per_node = 3;
      c.options.threads_per_rank = 2;
    }
    LinkDurations d(c.program, c.cluster, seed);
    d.kinds = 1 + int32_t(seed % 3);
    d.uplinks = seed % 2 == 0 ? 1 : 0.4;  // some become full, never before the links below
    const Replay r = replay(c.program, d, c.options);
    shared += r.shares_links;
    const auto ends = Fluid(c.program, d, c.options).run();
    for (size_t i = 0; i < r.ranks.size(); ++i) {
      const auto& row = ends[size_t(r.ranks[i])];
      for (size_t t = 0; t < row.size(); ++t) {
        const int64_t end = r.end_of_ns[size_t(r.base[i]) + t];
        ASSERT_NEAR(double(end), double(row[t]), 100) << "rank " << r.ranks[i] << " task " << t;
      }
      const RankTime& time = r.time[i];
      EXPECT_EQ(time.compute_ns + time.exposed_ns + time.bubble_ns + time.idle_ns, r.end_ns);
    }
    // Again, to the byte; and without a record.
    EXPECT_EQ(replay(c.program, d, c.options).end_of_ns, r.end_of_ns);
    ReplayOptions terse = c.options;
    terse.record = false;
    EXPECT_EQ(replay(c.program, d, terse).end_ns, r.end_ns);
  }
  EXPECT_GT(shared, 30);
}

/// Expects that a rank replayed for others has their times, to the nanosecond.
void expect_same_ends(const Program& program, const Replay& few, const Replay& all) {
  EXPECT_EQ(few.end_ns, all.end_ns);
  int32_t stands = 0;
  for (size_t i = 0; i < few.ranks.size(); ++i) {
    const size_t n = program.classes[size_t(program.class_of(few.ranks[i]))].tasks.size();
    const size_t other = size_t(all.base[size_t(few.ranks[i])]);
    stands += few.multiplicity[i];
    for (size_t t = 0; t < n; ++t) {
      ASSERT_EQ(few.end_of_ns[size_t(few.base[i]) + t], all.end_of_ns[other + t])
          << "rank " << few.ranks[i] << " task " << t;
    }
  }
  EXPECT_EQ(stands, program.num_ranks());
}

// If the ranks of a class share links equally, one stands for all of them, to the nanosecond.
TEST(SimSharing, DeduplicatedReplayMatchesAllRanks) {
  int reduced = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c = random_case(seed);
    LinkDurations d(c.program, c.cluster, seed);
    d.kinds = seed % 4 == 0 ? 2 : 1;
    const Replay all = replay(c.program, d, c.options);
    c.options.all_ranks = false;
    const Replay few = replay(c.program, d, c.options);
    reduced += few.shares_links && few.ranks.size() < all.ranks.size();
    expect_same_ends(c.program, few, all);
  }
  EXPECT_GT(reduced, 15);
}

// Ranks of a class differ if transfers within sets of ranks take another time than between them.
// They also differ if only some of them are below a link that becomes full.
TEST(SimSharing, DeduplicationSplitsClassesByTheirLinks) {
  int split = 0, shared = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c = random_case(seed, 12);
    LinkDurations d(c.program, c.cluster, seed);
    d.per_node = 1 + int32_t(seed % 12);
    d.across_factor = 2;
    d.uplinks = seed % 2 == 0 ? 1 : 0.4;
    const Replay all = replay(c.program, d, c.options);
    c.options.all_ranks = false;
    const Replay few = replay(c.program, d, c.options);
    const bool apart = few.deduplicated && few.ranks.size() > c.program.classes.size();
    split += apart;
    shared += apart && few.shares_links;
    expect_same_ends(c.program, few, all);
  }
  EXPECT_GT(split, 40);
  EXPECT_GT(shared, 10);
}

// Links with capacity for all concurrent transfers change nothing.
TEST(SimSharing, LinksThatNeverFillChangeNothing) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c = random_case(seed);
    LinkDurations d(c.program, c.cluster, seed);
    d.fixed_share = 1e-3;
    const Replay wide = replay(c.program, d, c.options);
    EXPECT_FALSE(wide.shares_links);
    c.options.share_links = false;
    EXPECT_EQ(wide.end_of_ns, replay(c.program, d, c.options).end_of_ns);
  }
}

}  // namespace
}  // namespace hocket::sim

// SPDX-License-Identifier: Apache-2.0
// Timelines of small programs against values derived by hand, and of random programs against an
// independent longest-path evaluation.
#include "sim/engine.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/sim/random_program.h"
#include "tests/sim/sim_util.h"

namespace hocket::sim {
namespace {

TEST(SimEngine, TasksOfOneLaneRunOneAfterAnother) {
  Maker m({{"dp", 1}});
  m.work(0, "a", 10);
  m.work(0, "b", 20);
  const Replay r = run(m.p);
  EXPECT_EQ(timeline(m.p, r), "0 compute a 0..10\n0 compute b 10..30\n");
  EXPECT_EQ(r.end_ns, 30);
  EXPECT_EQ(r.time[0].compute_ns, 30);
  EXPECT_EQ(r.time[0].exposed_ns, 0);
  EXPECT_EQ(r.time[0].idle_ns, 0);
}

// a 0..10; the all-reduce of its result runs 10..45 beside b (10..30); c needs both: 45..50. Of the
// all-reduce's 35 ns, 20 are hidden behind b and 15 (30..45) are exposed.
TEST(SimEngine, OverlappedCommunicationIsNotExposed) {
  Maker m({{"dp", 2}});
  const TaskId a = m.work(0, "a", 10);
  const TaskId ar = m.collective(0, {"dp"}, 35, {a});
  m.work(0, "b", 20);
  m.work(0, "c", 5, {ar});
  for (bool all : {false, true}) {
    const Replay r = run(m.p, {.all_ranks = all});
    EXPECT_EQ(r.ranks.size(), all ? 2u : 1u);
    EXPECT_EQ(r.multiplicity[0], all ? 1 : 2);
    EXPECT_EQ(timeline(m.p, r).substr(0, 80),
              std::string("0 compute a 0..10\n0 intra all_reduce 10..45\n0 compute b 10..30\n"
                          "0 compute c 45..50\n" +
                          std::string(all ? "1 compute a 0..10\n" : ""))
                  .substr(0, 80));
    EXPECT_EQ(r.end_ns, 50);
    EXPECT_EQ(r.time[0].compute_ns, 35);
    EXPECT_EQ(r.time[0].exposed_ns, 15);
    EXPECT_EQ(r.time[0].idle_ns, 0);
    ASSERT_EQ(r.path.size(), 3u);  // c, all_reduce, a
    EXPECT_EQ(r.path[0].task, 3);
    EXPECT_EQ(r.path[1].task, 1);
    EXPECT_EQ(r.path[2].task, 0);
  }
}

// a 0..10; then the host works 10..30 and a copy runs 10..25. Work of the host counts as
// computation: nothing is exposed. b waits for both: 30..35. The second copy runs alone: 35..42,
// exposed.
TEST(SimEngine, HostWorkCountsAsComputation) {
  Maker m({{"dp", 1}});
  const TaskId a = m.work(0, "a", 10);
  const TaskId host = m.work(0, "host", 20, {a}, Lane::host);
  const TaskId copy = m.work(0, "copy", 15, {a}, Lane::h2d);
  const TaskId b = m.work(0, "b", 5, {host, copy});
  m.work(0, "copy", 7, {b}, Lane::d2h);
  const Replay r = run(m.p);
  EXPECT_EQ(r.end_ns, 42);
  EXPECT_EQ(r.time[0].compute_ns, 35);
  EXPECT_EQ(r.time[0].exposed_ns, 7);
  EXPECT_EQ(r.time[0].idle_ns, 0);
}

// Two stages, two micro-batches, 1F1B; forward 10, backward 20, transfer 3.
//   stage 0: f0 0..10, f1 10..20; sends 10..13, 20..23; b0 after its gradient, b1 after its own.
//   stage 1: f0 13..23, b0 23..43, send 43..46; f1 43..53 (arrived at 23), b1 53..73, send 73..76.
//   stage 0: b0 46..66, b1 76..96.
TEST(SimEngine, A1F1BPipelineMatchesAHandComputedTimeline) {
  Maker m({{"pp", 2}, {"dp", 2}});
  const TaskId f0 = m.work(0, "f0", 10);
  const TaskId f1 = m.work(0, "f1", 10);
  m.send(0, +1, 0, 3, {f0});
  m.send(0, +1, 1, 3, {f1});
  const TaskId g0 = m.recv(0, +1, 2);
  const TaskId g1 = m.recv(0, +1, 3);
  m.work(0, "b0", 20, {g0});
  m.work(0, "b1", 20, {g1});

  const TaskId x0 = m.recv(1, -1, 0);
  const TaskId x1 = m.recv(1, -1, 1);
  m.work(1, "f0", 10, {x0});
  const TaskId b0 = m.work(1, "b0", 20);
  m.work(1, "f1", 10, {x1});
  const TaskId b1 = m.work(1, "b1", 20);
  m.send(1, -1, 2, 3, {b0});
  m.send(1, -1, 3, 3, {b1});

  const Replay r = run(m.p);
  EXPECT_TRUE(r.deduplicated);
  EXPECT_EQ(
      timeline(m.p, r),
      "0 compute f0 0..10\n0 compute f1 10..20\n0 intra_tx send 10..13\n0 intra_tx send 20..23\n"
      "0 intra_rx recv 0..46\n0 intra_rx recv 46..76\n0 compute b0 46..66\n"
      "0 compute b1 76..96\n"
      "2 intra_rx recv 0..13\n2 intra_rx recv 13..23\n2 compute f0 13..23\n"
      "2 compute b0 23..43\n2 compute f1 43..53\n2 compute b1 53..73\n2 intra_tx send 43..46\n"
      "2 intra_tx send 73..76\n");
  EXPECT_EQ(r.end_ns, 96);
  // Stage 0: compute 60; transfers outside compute: send 20..23, recv 43..46 and 73..76 (the part
  // in which the sender was sending); 23..43 and 66..73 it waits for stage 1.
  EXPECT_EQ(r.time[0].compute_ns, 60);
  EXPECT_EQ(r.time[0].exposed_ns, 9);
  EXPECT_EQ(r.time[0].bubble_ns, 27);
  EXPECT_EQ(r.time[0].idle_ns, 0);
  // Stage 1: compute 13..73; recv 10..13 and send 73..76 exposed; 0..10 it waits for stage 0, and
  // 76..96 too, which ends the step.
  EXPECT_EQ(r.time[1].compute_ns, 60);
  EXPECT_EQ(r.time[1].exposed_ns, 6);
  EXPECT_EQ(r.time[1].bubble_ns, 30);
  EXPECT_EQ(r.time[1].idle_ns, 0);
  // Two messages each way of 3: in the sender's and in the receiver's own lane.
  for (const RankTime& t : r.time) {
    EXPECT_EQ(t.busy_ns[size_t(Lane::intra_tx)], 6);
    EXPECT_EQ(t.busy_ns[size_t(Lane::intra_rx)], 6);
    EXPECT_EQ(t.busy_ns[size_t(Lane::compute)], 60);
    EXPECT_EQ(t.busy_ns[size_t(Lane::inter_rx)], 0);
  }
  // Critical path backwards: b1, its transfer, b1 f1 b0 f0 of stage 1, transfer, f0 of stage 0.
  std::string path;
  for (const PathStep& s : r.path) {
    path += std::to_string(r.ranks[size_t(s.index)]) + ":" + std::to_string(s.begin_ns) + " ";
  }
  EXPECT_EQ(path, "0:76 2:73 2:53 2:43 2:23 2:13 0:10 0:0 ");

  const Replay all = run(m.p, {.all_ranks = true});
  EXPECT_EQ(all.ranks.size(), 4u);
  EXPECT_EQ(all.end_ns, 96);
}

// Three stages pass a message around the ring. Stage s works 10 (s + 1), then sends 5 to the next
// (the last one to the first). It works 1 once the message of its predecessor has arrived.
//   stage 0: a 0..10, send 10..15, from stage 2 at 35: b 35..36.
//   stage 1: a 0..20, from stage 0 at 15: b 20..21.  stage 2: a 0..30, from stage 1 at 25:
//   b 30..31.
TEST(SimEngine, PeersWrapAroundTheirAxis) {
  Maker m({{"pp", 3}});
  for (int32_t s = 0; s < 3; ++s) {
    const TaskId a = m.work(s, "a", 10 * (s + 1));
    m.send(s, 1, 0, 5, {a});
    const TaskId arrived = m.recv(s, -1, 0);
    m.work(s, "b", 1, {arrived});
  }
  const Replay r = run(m.p);
  EXPECT_EQ(r.end_of_ns[size_t(r.base[0]) + 3], 36);
  EXPECT_EQ(r.end_of_ns[size_t(r.base[1]) + 3], 21);
  EXPECT_EQ(r.end_of_ns[size_t(r.base[2]) + 3], 31);
  EXPECT_EQ(r.end_ns, 36);
}

// A group over two stages: the members arrive at 10 and 25, the transfer takes 7. Stage 0 waits 15
// for the other (not communication), then both are in transfer 25..32.
TEST(SimEngine, CollectiveStartsWhenTheLastMemberArrives) {
  Maker m({{"pp", 3}, {"dp", 2}});
  const std::vector<int32_t> ends = {0, 2};
  const TaskId a = m.work(0, "a", 10);
  m.collective(0, {"pp"}, 7, {a}, "all_reduce", ends);
  m.work(1, "other", 1);
  const TaskId b = m.work(2, "b", 25);
  m.collective(2, {"pp"}, 7, {b}, "all_reduce", ends);
  for (bool all : {false, true}) {
    const Replay r = run(m.p, {.all_ranks = all});
    EXPECT_EQ(r.end_ns, 32);
    EXPECT_EQ(r.time[0].bubble_ns, 15);
    EXPECT_EQ(r.time[0].idle_ns, 0);
    EXPECT_EQ(r.time[0].exposed_ns, 7);
    const size_t last = r.ranks.size() - 1;
    EXPECT_EQ(r.time[last].bubble_ns + r.time[last].idle_ns, 0);
    EXPECT_EQ(r.start_ns[1], 10);
    EXPECT_EQ(r.transfer_ns[1], 25);
    ASSERT_EQ(r.path.size(), 2u);  // transfer, then b of the late stage
    EXPECT_EQ(r.path[1].begin_ns, 0);
    EXPECT_EQ(r.path[1].end_ns, 25);
    EXPECT_EQ(r.ranks[size_t(r.path[1].index)] / 2, 2);
  }
}

// A ring along dp: every rank sends to its neighbour; across the node border the transfer takes 4x.
// 4 ranks on nodes of 2: pairs 0->1 and 2->3 stay inside (5), 1->2 and 3->0 cross (20). So ranks 0
// and 2 are equivalent, and 1 and 3.
TEST(SimEngine, RanksWithDifferentLinksAreReplayedSeparately) {
  Maker m({{"dp", 4}});
  m.send(0, +1, 0, 5, {}, "dp");
  m.work(0, "x", 1, {m.recv(0, -1, 0, {}, "dp")});
  FixedDurations d(m.p);
  const Replay same = replay(m.p, d, {});
  EXPECT_TRUE(same.deduplicated);
  EXPECT_EQ(same.end_ns, 6);
  d.per_node = 2;
  d.across_factor = 4;
  const Replay few = replay(m.p, d, {});
  EXPECT_TRUE(few.deduplicated);
  EXPECT_EQ(few.ranks, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(few.multiplicity, (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(few.end_ns, 21);
  EXPECT_EQ(few.start_ns[2], 20);
  EXPECT_EQ(few.start_ns[5], 5);
  const Replay r = replay(m.p, d, {.all_ranks = true});
  ASSERT_EQ(r.ranks.size(), 4u);
  EXPECT_EQ(r.end_ns, 21);
  // x of rank 1 and 3 starts at 5, of rank 0 and 2 at 20.
  EXPECT_EQ(r.start_ns[2], 20);
  EXPECT_EQ(r.start_ns[5], 5);
  EXPECT_EQ(r.start_ns[8], 20);
  EXPECT_EQ(r.start_ns[11], 5);
}

// 2 ranks of 2 threads on 2 cores: a (100) runs on both at half speed until 200; then rank 1 is
// done and rank 0 runs b (50) alone: 200..250.
TEST(SimEngine, RanksShareScarceCores) {
  Maker m({{"pp", 2}});
  m.work(0, "a", 100);
  m.work(0, "b", 50);
  m.work(1, "a", 100);
  ReplayOptions o{.devices_per_node = 2, .cores_per_node = 2, .threads_per_rank = 2};
  Replay r = run(m.p, o);
  EXPECT_EQ(timeline(m.p, r), "0 compute a 0..200\n0 compute b 200..250\n1 compute a 0..200\n");
  // Unequal: rank 1's a takes 30. Shared until rank 1 has done 30 at 60; rank 0 has 70 left: 130.
  m.p.classes[1].tasks.clear();
  m.work(1, "a", 30);
  r = run(m.p, o);
  EXPECT_EQ(timeline(m.p, r), "0 compute a 0..130\n0 compute b 130..180\n1 compute a 0..60\n");
  // 3 cores for a demand of 4: three quarters of the speed. 30 / 0.75 = 40; rank 0 has done 30 by
  // then and finishes its 70 at 110.
  o.cores_per_node = 3;
  EXPECT_EQ(run(m.p, o).start_ns[1], 110);
  // With enough cores each rank runs as if it had a device.
  o.cores_per_node = 4;
  EXPECT_EQ(run(m.p, o).end_ns, 150);
  // Other nodes do not share.
  o.cores_per_node = 2;
  o.devices_per_node = 1;
  EXPECT_EQ(run(m.p, o).end_ns, 150);
}

// A rank that arrives late joins: rank 1 waits 40 (in a lane of links), then both share.
// Rank 0: a alone 0..40 (40 done), shared 40..160 (60 done). Rank 1: b 40 shared 40..120 (40 done);
// rank 0 at 120 has 40 + 40 = 80 done, alone until 140.
TEST(SimEngine, SharingChangesWithTheLoad) {
  Maker m({{"pp", 2}});
  m.work(0, "a", 100);
  const TaskId w = m.work(1, "wait", 40, {}, Lane::intra_rx);
  m.work(1, "b", 40, {w});
  const Replay r = run(m.p, {.devices_per_node = 2, .cores_per_node = 1, .threads_per_rank = 1});
  EXPECT_EQ(timeline(m.p, r), "0 compute a 0..140\n1 intra_rx wait 0..40\n1 compute b 40..120\n");
}

// Eleven days a task: exact with and without shared cores, and an error when the sum gets absurd.
TEST(SimEngine, LongTimesDoNotOverflow) {
  constexpr int64_t kLong = 1'000'000'000'000'000;
  Maker m({{"pp", 2}});
  for (int i = 0; i < 20; ++i) {
    m.work(0, "a", kLong);
    m.work(1, "a", kLong);
  }
  const ReplayOptions shared{.devices_per_node = 2, .cores_per_node = 1, .threads_per_rank = 1};
  EXPECT_EQ(run(m.p, shared).end_ns, 40 * kLong);
  EXPECT_EQ(run(m.p).end_ns, 20 * kLong);
  for (int i = 0; i < 10'000; ++i) {
    m.work(0, "a", kLong);
  }
  for (const ReplayOptions& o : {ReplayOptions{}, shared}) {
    try {
      run(m.p, o);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("would take more than 11574 days"), std::string::npos)
          << e.what();
    }
  }
}

std::string failure(const Program& p, ReplayOptions o = {}) {
  try {
    run(p, o);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(SimEngine, DeadlockReportNamesTheBlockedTaskOfEveryLane) {
  {
    // Each stage first waits for the other's message.
    Maker m({{"pp", 2}});
    const TaskId r0 = m.recv(0, +1, 0);
    m.send(0, +1, 1, 5, {r0});
    const TaskId r1 = m.recv(1, -1, 1);
    m.send(1, -1, 0, 5, {r1});
    const std::string text = failure(m.p);
    EXPECT_NE(text.find("deadlock"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0 intra_rx"), std::string::npos) << text;
    EXPECT_NE(text.find("of rank 1"), std::string::npos) << text;
    EXPECT_EQ(failure(m.p, {.record = false}), text);
  }
  {
    Maker m({{"pp", 2}});
    m.recv(1, -1, 7);
    m.work(0, "a", 1);
    const std::string text = failure(m.p);
    EXPECT_NE(text.find("tag 7) that rank 0 never sends"), std::string::npos) << text;
  }
  {
    // One stage of the group never arrives.
    Maker m({{"pp", 2}});
    m.collective(0, {"pp"}, 5);
    m.work(1, "a", 1);
    const std::string text = failure(m.p);
    EXPECT_NE(text.find("1 of 2 members have arrived"), std::string::npos) << text;
  }
  {
    // Two collectives of one group in different orders in the two stages.
    Maker m({{"pp", 2}});
    m.collective(0, {"pp"}, 5, {}, "all_reduce");
    m.collective(0, {"pp"}, 5, {}, "all_gather");
    m.collective(1, {"pp"}, 5, {}, "all_gather");
    m.collective(1, {"pp"}, 5, {}, "all_reduce");
    const std::string text = failure(m.p);
    EXPECT_NE(text.find("different collectives"), std::string::npos) << text;
  }
  {
    Maker m({{"pp", 1}});
    m.work(0, "a", 1, {1}, Lane::h2d);
    m.work(0, "b", 1, {0});
    EXPECT_NE(failure(m.p).find("waits for"), std::string::npos);
  }
}

// Stage 1 waits for a message of stage 0 (sent at 20, arrived at 25), gathers it over dp (25..28)
// and computes. The task is delayed by a collective of its own stage, which started when the
// message arrived.
TEST(SimEngine, BubbleIsTracedThroughACollectiveOfTheOwnStage) {
  Maker m({{"pp", 2}, {"dp", 2}});
  m.send(0, +1, 0, 5, {m.work(0, "a", 20)});
  const TaskId arrived = m.recv(1, -1, 0);
  const TaskId gathered = m.collective(1, {"dp"}, 3, {arrived}, "all_gather");
  m.work(1, "b", 10, {gathered});
  for (bool all : {false, true}) {
    const Replay r = run(m.p, {.all_ranks = all});
    const RankTime& last = r.time.back();
    EXPECT_EQ(last.compute_ns, 10);
    EXPECT_EQ(last.exposed_ns, 8);
    EXPECT_EQ(last.bubble_ns, 20);
    EXPECT_EQ(last.idle_ns, 0);
    EXPECT_EQ(r.time[0].bubble_ns, 13);  // from the end of its send to that of the step
  }
}

// Ranks 2 and 3 are stage 1; rank 3 is half as fast. Rank 2 waits for it (10..20) in a collective.
// A message of stage 0, which nothing waits for yet, arrives meanwhile (12..14): it makes no
// bubble.
TEST(SimEngine, WaitingForTheOwnStageIsIdleTime) {
  Maker m({{"pp", 2}, {"dp", 2}});
  m.send(0, +1, 0, 2, {m.work(0, "a", 12)});
  const TaskId arrived = m.recv(1, -1, 0);
  const TaskId a = m.work(1, "a", 10);
  const TaskId sum = m.collective(1, {"dp"}, 3, {a});
  m.work(1, "b", 5, {sum});
  m.work(1, "c", 5, {arrived});
  FixedDurations slow(m.p);
  slow.kinds = 2;
  const Replay r = replay(m.p, slow, {});
  ASSERT_EQ(r.ranks.size(), 4u);
  EXPECT_EQ(r.time[2].compute_ns, 20);
  EXPECT_EQ(r.time[2].exposed_ns, 2 + 3);
  EXPECT_EQ(r.time[2].bubble_ns, 0);
  EXPECT_EQ(r.time[2].idle_ns, 8 + 10);  // and rank 3, which ends last, is of its own stage
  EXPECT_EQ(r.time[3].bubble_ns + r.time[3].idle_ns, 0);
}

// Groups within a stage: other stages may use their instances for other collectives.
TEST(SimEngine, StagesMayRunDifferentCollectivesOfAGroup) {
  Maker m({{"pp", 2}, {"dp", 2}});
  m.collective(0, {"dp"}, 5, {}, "all_reduce");
  m.collective(1, {"dp"}, 7, {}, "all_gather");
  m.collective(1, {"dp"}, 7, {}, "all_reduce");
  EXPECT_EQ(run(m.p).end_ns, 14);
  EXPECT_EQ(run(m.p, {.all_ranks = true}).end_ns, 14);
}

TEST(SimEngine, InvalidReferencesAreRefused) {
  Maker m({{"pp", 1}});
  m.work(0, "a", 1, {5});
  EXPECT_THROW(run(m.p), Error);
  Maker n({{"pp", 3}});
  n.collective(0, {"pp"}, 5, {}, "all_reduce", {1, 2});  // stage 0 is no member
  EXPECT_THROW(run(n.p), Error);
  Maker s({{"pp", 2}});
  s.send(1, +1, 0, 5, {}, "ep");  // there is no such axis
  EXPECT_THROW(run(s.p), Error);
  Maker twice({{"pp", 1}, {"dp", 3}});
  twice.exchange(0, {1, 2, 1}, 0, 5);  // two ranks send to the last
  EXPECT_THROW(run(twice.p), Error);
}

/// Four ranks of a class exchange in two pairs, then in a cycle of irregular order.
TEST(SimEngine, PeersMayFormAnyPermutation) {
  Maker m({{"pp", 1}, {"dp", 4}});
  const TaskId pairs = m.exchange(0, {1, 0, 3, 2}, 0, 5);
  const TaskId around = m.exchange(0, {2, 0, 3, 1}, 0, 7, {pairs});
  m.work(0, "w", 1, {around});
  EXPECT_EQ(run(m.p).end_ns, 13);
  const Replay all = run(m.p, {.all_ranks = true});
  EXPECT_EQ(all.end_ns, 13);
  EXPECT_EQ(all.ranks.size(), 4u);
}

/// End of every task by plain recursion over its constraints: lane order, dependencies, members,
/// sender. Independent of the engine: it walks the program itself, rank by rank.
class Reference {
 public:
  /// Creates a reference for a program on `kinds` kinds of devices, as in FixedDurations.
  Reference(const Program& p, int32_t kinds) : p_(p), kinds_(kinds) {}
  int64_t end(int32_t rank, TaskId t) {
    const auto key = std::pair(rank, t);
    if (const auto it = ends_.find(key); it != ends_.end()) return it->second;
    const auto& task = tasks(rank)[size_t(t)];
    int64_t e = begin(rank, t);
    if (p_.kind(task).op == "recv") {
      e = ready(rank, t);
      for (const auto& [from, send] : others(rank, t)) {
        e = std::max(e, end(from, send));
      }
    } else {
      const int32_t times = program::is_communication(p_.kind(task)) ? 1 : rank % kinds_ + 1;
      e += p_.kind(task).attrs.i("ns") * times;
    }
    return ends_[key] = e;
  }
  /// Returns the time when all members or both ends were ready.
  int64_t begin(int32_t rank, TaskId t) {
    int64_t b = ready(rank, t);
    for (const auto& [other, task] : others(rank, t)) {
      b = std::max(b, ready(other, task));
    }
    return b;
  }
  int64_t ready(int32_t rank, TaskId t) {
    const auto& list = tasks(rank);
    int64_t r = 0;
    for (TaskId d : list[size_t(t)].deps) {
      r = std::max(r, end(rank, d));
    }
    for (TaskId s = t - 1; s >= 0; --s) {
      if (list[size_t(s)].lane == list[size_t(t)].lane) {
        r = std::max(r, end(rank, s));
        break;
      }
    }
    return r;
  }
  /// Returns the time in which the compute lane is idle, without a transfer, because another stage
  /// is late.
  int64_t bubble(int32_t rank, int64_t step) {
    const auto& list = tasks(rank);
    int64_t sum = 0;
    int64_t from = 0;  // end of the previous compute task
    int64_t last = 0;
    std::vector<TaskId> all;
    for (size_t t = 0; t < list.size(); ++t) {
      all.push_back(TaskId(t));
      last = std::max(last, end(rank, TaskId(t)));
      if (list[t].lane != Lane::compute) continue;
      sum += bubble_before(rank, preds(rank, TaskId(t)), ready(rank, TaskId(t)), from);
      from = end(rank, TaskId(t));
    }
    sum += bubble_before(rank, all, last, from);
    bool other_ends = false;
    for (int32_t r = 0; r < p_.num_ranks(); ++r) {
      for (size_t t = 0; t < tasks(r).size(); ++t) {
        other_ends |= end(r, TaskId(t)) == step && p_.class_of(r) != p_.class_of(rank);
      }
    }
    return sum + (other_ends ? step - last : 0);
  }

 private:
  using Tasks = std::vector<std::pair<int32_t, TaskId>>;
  /// Returns the longest bubble behind those of the tasks `before` that ended `at`.
  int64_t bubble_before(int32_t rank, const std::vector<TaskId>& before, int64_t at, int64_t from) {
    int64_t most = 0;
    for (TaskId t : before) {
      if (end(rank, t) != at || tasks(rank)[size_t(t)].lane == Lane::compute) continue;
      const int64_t came = ready(rank, t);
      const int64_t moved = begin(rank, t);
      bool other_stage = false;
      for (const auto& [other, task] : others(rank, t)) {
        other_stage |= ready(other, task) == moved && p_.class_of(other) != p_.class_of(rank);
      }
      const int64_t own = other_stage ? idle(rank, std::max(came, from), moved) : 0;
      most = std::max(most, own + bubble_before(rank, preds(rank, t), came, from));
    }
    return most;
  }
  /// Returns the time in [from, to) without any activity on the rank.
  int64_t idle(int32_t rank, int64_t from, int64_t to) {
    std::vector<std::pair<int64_t, int64_t>> busy;
    for (size_t t = 0; t < tasks(rank).size() && from < to; ++t) {
      busy.push_back({begin(rank, TaskId(t)), end(rank, TaskId(t))});
    }
    std::sort(busy.begin(), busy.end());
    int64_t ns = 0;
    for (const auto& [start, stop] : busy) {
      ns += std::max<int64_t>(0, std::min(start, to) - from);
      from = std::max(from, stop);
    }
    return ns + std::max<int64_t>(0, to - from);
  }
  std::vector<TaskId> preds(int32_t rank, TaskId t) {
    const auto& list = tasks(rank);
    std::vector<TaskId> before = list[size_t(t)].deps;
    for (TaskId s = t - 1; s >= 0; --s) {
      if (list[size_t(s)].lane == list[size_t(t)].lane) {
        before.push_back(s);
        break;
      }
    }
    return before;
  }
  /// Returns the matching tasks of other ranks: the send of a receive, the members of a collective.
  const Tasks& others(int32_t rank, TaskId t) {
    const auto [found, fresh] = others_.try_emplace({rank, t});
    Tasks& met = found->second;
    if (!fresh) return met;
    const auto& task = tasks(rank)[size_t(t)];
    if (p_.kind(task).op == "recv") {
      const int32_t from = p_.peer_of(task.peer_map(), rank);
      int32_t k = nth(rank, t, [&](const program::Task& o) {
        return p_.kind(o).op == "recv" && o.tag == task.tag &&
               p_.peer_of(o.peer_map(), rank) == from;
      });
      const auto& sends = tasks(from);
      for (size_t s = 0; s < sends.size(); ++s) {
        if (p_.kind(sends[s]).op != "send" || sends[s].tag != task.tag) continue;
        if (p_.peer_of(sends[s].peer_map(), from) != rank) continue;
        if (k-- == 0) {
          met.push_back({from, TaskId(s)});
        }
      }
    } else if (program::is_collective(p_.kind(task))) {
      const int32_t k = nth(rank, t, [&](const program::Task& o) {
        return program::is_collective(p_.kind(o)) && o.group == task.group && o.lane == task.lane;
      });
      for (int32_t m : p_.members(p_.groups[size_t(task.group)], rank)) {
        int32_t left = k;
        const auto& list = tasks(m);
        for (size_t s = 0; s < list.size(); ++s) {
          if (program::is_collective(p_.kind(list[s])) && list[s].group == task.group &&
              list[s].lane == task.lane && left-- == 0 && m != rank) {
            met.push_back({m, TaskId(s)});
          }
        }
      }
    }
    return met;
  }
  const std::vector<program::Task>& tasks(int32_t rank) {
    return p_.classes[size_t(p_.class_of(rank))].tasks;
  }
  template <class F>
  int32_t nth(int32_t rank, TaskId t, F same) {
    int32_t k = 0;
    for (TaskId s = 0; s < t; ++s) {
      k += same(tasks(rank)[size_t(s)]);
    }
    return k;
  }
  const Program& p_;
  const int32_t kinds_;
  std::map<std::pair<int32_t, TaskId>, int64_t> ends_;
  std::map<std::pair<int32_t, TaskId>, Tasks> others_;
};

TEST(SimEngine, RandomProgramsMatchTheLongestPath) {
  int reduced = 0;
  int64_t bubbles = 0;
  int64_t idle = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program p = random_program(seed);
    FixedDurations durations(p);
    durations.kinds = 1 + int32_t(seed % 3);
    Reference reference(p, durations.kinds);
    for (bool all : {false, true}) {
      const Replay r = replay(p, durations, {.all_ranks = all});
      reduced += r.deduplicated && int32_t(r.ranks.size()) < p.num_ranks();
      int64_t last = 0;
      for (size_t i = 0; i < r.ranks.size(); ++i) {
        const size_t n = p.classes[size_t(p.class_of(r.ranks[i]))].tasks.size();
        for (size_t t = 0; t < n; ++t) {
          ASSERT_EQ(r.end_of_ns[size_t(r.base[i]) + t], reference.end(r.ranks[i], TaskId(t)))
              << "rank " << r.ranks[i] << " task " << t;
          ASSERT_EQ(r.start_ns[size_t(r.base[i]) + t], reference.ready(r.ranks[i], TaskId(t)));
          last = std::max(last, reference.end(r.ranks[i], TaskId(t)));
        }
        const RankTime& time = r.time[i];
        EXPECT_EQ(time.compute_ns + time.exposed_ns + time.bubble_ns + time.idle_ns, r.end_ns);
        EXPECT_EQ(time.bubble_ns, reference.bubble(r.ranks[i], r.end_ns)) << "rank " << r.ranks[i];
        bubbles += time.bubble_ns;
        idle += time.idle_ns;
      }
      EXPECT_EQ(r.end_ns, last);
      // The critical path covers the step without a gap.
      int64_t edge = r.end_ns;
      for (const PathStep& s : r.path) {
        EXPECT_EQ(s.end_ns, edge);
        edge = s.begin_ns;
      }
      EXPECT_EQ(edge, 0);
      const Replay unrecorded = replay(p, durations, {.all_ranks = all, .record = false});
      EXPECT_EQ(unrecorded.end_ns, r.end_ns);
      for (size_t i = 0; i < r.ranks.size(); ++i) {
        EXPECT_EQ(unrecorded.time[i].bubble_ns, r.time[i].bubble_ns);
      }
    }
  }
  EXPECT_GT(reduced, 50);
  EXPECT_GT(bubbles, 10000);
  EXPECT_GT(idle, 10000);
}

/// With scarce cores the engine must conserve work: while anything computes on a node, its cores do
/// min(cores, demand) core-nanoseconds per nanosecond.
TEST(SimEngine, SharingConservesWork) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program p = random_program(seed);
    const int32_t world = p.num_ranks();
    const ReplayOptions o{.devices_per_node = world, .cores_per_node = 3, .threads_per_rank = 2};
    const Replay r = run(p, o);
    if (world * 2 <= 3) continue;
    ASSERT_EQ(int32_t(r.ranks.size()), world);
    std::vector<std::pair<int64_t, int>> edges;
    double work = 0;
    int64_t tasks = 0;
    for (size_t i = 0; i < r.ranks.size(); ++i) {
      const auto& list = p.classes[size_t(p.class_of(r.ranks[i]))].tasks;
      for (size_t t = 0; t < list.size(); ++t) {
        if (list[t].lane != Lane::compute && !program::is_of_host(list[t].lane)) continue;
        const size_t n = size_t(r.base[i]) + t;
        edges.push_back({r.start_ns[n], +2});
        edges.push_back({r.end_of_ns[n], -2});
        work += 2.0 * double(p.kind(list[t]).attrs.i("ns"));
        ++tasks;
      }
    }
    std::sort(edges.begin(), edges.end());
    double done = 0;
    int demand = 0;
    int64_t now = 0;
    for (const auto& [ns, change] : edges) {
      done += double(std::min(demand, 3)) * double(ns - now);
      now = ns;
      demand += change;
    }
    // Ends are rounded up to whole nanoseconds.
    EXPECT_GE(done + 1e-6, work);
    EXPECT_LE(done, work + 3.0 * double(tasks));
  }
}

}  // namespace
}  // namespace hocket::sim

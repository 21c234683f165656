// SPDX-License-Identifier: Apache-2.0
// Closed forms of collectives against values derived by hand: steps by the link that they pass, the
// busiest link, protocols, levels of switches, hierarchical reductions, and measured groups.
#include "cost/collective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cost/cost_model.h"
#include "cost/rooted.h"
#include "tests/cluster_util.h"

namespace hocket::cost {
namespace {

/// Returns 16 nodes of 8 devices, 4 nodes per leaf switch: 100 GB/s and 1 us inside nodes, 10 GB/s
/// and 10 us between them.
Cluster two_levels() {
  Cluster c = test::cluster_of(16, 8);
  c.topology.levels = {test::leaves_of(32, 4)};
  c.topology.levels[0].latency.value = 2e-6;
  c.validate("levels");
  return c;
}

GroupShape first(const Cluster& c, int32_t ranks, int32_t stride = 1) {
  std::vector<int32_t> group;
  for (int32_t r = 0; r < ranks; ++r) {
    group.push_back(r * stride);
  }
  return c.shape(group);
}

AlgorithmTime best(const Cluster& c, const char* op, double bytes, const GroupShape& shape) {
  return algorithm_times(c, find_costed(op)->algorithms(shape.members, bytes), shape).front();
}

TEST(Collective, RingsEnterEveryNodeOnceAndPayForOversubscription) {
  const Cluster c = two_levels();
  // 32 ranks on 4 nodes of one leaf: of 31 steps 4 in 32 leave a node.
  AlgorithmTime time = best(c, "all_gather", 1e9, first(c, 32));
  EXPECT_EQ(time.algorithm, "ring");
  EXPECT_NEAR(time.latency_s, 31 * (4 / 32.0 * 10e-6 + 28 / 32.0 * 1e-6), 1e-12);
  // 31/32 GB through 8 adapters of 10 GB/s.
  EXPECT_NEAR(time.data_s, 31 / 32.0 / 80, 1e-9);
  EXPECT_EQ(time.busiest, "inter");
  // 64 ranks on two leaves: a leaf's 4 x 8 adapters share a quarter of their bandwidth, 80 GB/s,
  // the bandwidth of a node; two of 64 hops pay 2 us more.
  time = best(c, "all_gather", 1e9, first(c, 64));
  EXPECT_NEAR(time.data_s, 63 / 64.0 / 80, 1e-9);
  EXPECT_NEAR(time.latency_s, 63 * (2 / 64.0 * 12e-6 + 6 / 64.0 * 10e-6 + 56 / 64.0 * 1e-6), 1e-12);
}

TEST(Collective, AllToAllIsBoundByLeafUplinks) {
  const Cluster c = two_levels();
  // Each of 64 ranks sends 1/64 of its bytes to each other one. A leaf's 32 ranks send half of
  // theirs through 80 GB/s; a node's 8 send 56/64 through 80 GB/s.
  const AlgorithmTime time = best(c, "resplit", 64e6, first(c, 64));
  EXPECT_NEAR(time.data_s, 32 * 32 * 1e6 / 80e9, 1e-9);
  EXPECT_EQ(time.busiest, "leaf");
  EXPECT_NEAR(time.latency_s, 12e-6, 1e-12);
}

TEST(Collective, RootedCollectivesAreBoundByTheRootsLinks) {
  Cluster c = two_levels();
  // The whole payload passes every node's 8 adapters, in the steps of a ring.
  AlgorithmTime time = best(c, "broadcast", 1e9, first(c, 32));
  EXPECT_EQ(time.algorithm, "chain");
  EXPECT_NEAR(time.data_s, 1 / 80.0, 1e-9);
  EXPECT_NEAR(time.latency_s, best(c, "all_gather", 1e9, first(c, 32)).latency_s, 1e-12);
  EXPECT_EQ(best(c, "reduce", 1e9, first(c, 32)).seconds(), time.seconds());
  // 56 of 64 parts come to the root's node from others, through the root's adapter alone; fewer
  // adapters change nothing.
  for (const int64_t adapters : {0, 2}) {
    c.topology.adapters_per_node = adapters;
    time = best(c, "gather", 64e6, first(c, 64));
    EXPECT_EQ(time.algorithm, "rooted");
    EXPECT_EQ(time.busiest, "inter");
    EXPECT_NEAR(time.data_s, 56e6 / 10e9, 1e-9);
    EXPECT_NEAR(time.latency_s, 12e-6, 1e-12);
    EXPECT_EQ(best(c, "scatter", 64e6, first(c, 64)).seconds(), time.seconds());
  }
  // Inside a node 7 of 8.
  EXPECT_NEAR(best(c, "scatter", 8e9, first(c, 8)).data_s, 7 / 100.0, 1e-9);
  EXPECT_EQ(find_costed("recv"), nullptr);  // its sender pays
}

TEST(Collective, RanksShareAdaptersAndRailsHaveOwnPlanes) {
  Cluster c = two_levels();
  c.topology.adapters_per_node = 2;
  EXPECT_NEAR(best(c, "all_gather", 1e9, first(c, 32)).data_s, 31 / 32.0 / 20, 1e-9);
  // One rank on each node has one adapter; on rails its plane of the leaf is half of 20 GB/s x 4 /
  // 4.
  c.topology.rails = true;
  const AlgorithmTime time = best(c, "all_gather", 1e9, first(c, 8, 8));
  EXPECT_NEAR(time.data_s, 7 / 8.0 / 10, 1e-9);
}

TEST(Collective, ShortMessagesUseTheirOwnProtocol) {
  Cluster c = two_levels();
  c.links.intra.start.value = 40e-6;
  c.links.intra.half_size.value = 1e6;
  c.links.intra.short_messages = {{5e-6, ""}, {0.5e-6, ""}, {10e9, ""}, {}};
  const GroupShape eight = first(c, 8);
  // 14 steps of 0.5 us, 1.75 x 1 kB at 10 GB/s; a tree's 6 steps are fewer.
  AlgorithmTime time = best(c, "all_reduce", 1e3, eight);
  EXPECT_TRUE(time.short_messages);
  EXPECT_EQ(time.algorithm, "tree");
  EXPECT_NEAR(time.seconds(), 5e-6 + 6 * 0.5e-6 + 2e3 / 10e9, 1e-12);
  // 1.75 GB at 100 GB/s, times 1 + sqrt(1 MB / 1.75 GB).
  time = best(c, "all_reduce", 1e9, eight);
  EXPECT_FALSE(time.short_messages);
  EXPECT_NEAR(time.seconds(), 40e-6 + 14e-6 + 0.0175 * (1 + std::sqrt(1 / 1750.0)), 1e-9);
  // Constants for messages are used where given.
  c.links.intra.message = {{1e-6, ""}, {2e-6, ""}, {50e9, ""}, {}};
  EXPECT_NEAR(best(c, "send", 1e9, first(c, 2)).seconds(), 3e-6 + 0.02, 1e-9);
}

TEST(Collective, HierarchicalAllReduceStartsInsideNodes) {
  Cluster c = two_levels();
  c.topology = {};
  const GroupShape shape = first(c, 32);
  const comm::Algorithm ring = comm::op(comm::find("all_reduce")).algorithms(32, 1e9).front();
  const AlgorithmTime time = hierarchical(c, ring, shape).front();
  // Inside 2 x 7 steps of 1/8, between 2 x 3 steps, in which a node's ranks send 2 x 3/4.
  EXPECT_NEAR(time.latency_s, 14e-6 + 60e-6, 1e-12);
  EXPECT_NEAR(time.data_s, 2 * 7 / 8.0 / 100 + 2 * 3 / 4.0 / 80, 1e-9);
  EXPECT_TRUE(hierarchical(c, ring, first(c, 8)).empty());
  // The cost model uses it if the cluster's library has it: small sizes are faster in 7 short steps
  // and 3 long ones than in 31 steps with 3.9 long ones.
  Kind kind;
  kind.op = "all_gather";
  kind.communication = comm::find("all_gather");
  kind.bytes = 1;
  EXPECT_EQ(CostModel(c, std::nullopt, 1).transfer(kind, 0, false, shape).ns, 65875);
  c.algorithms = {"hierarchical"};
  const CostModel costs(c, std::nullopt, 1);
  EXPECT_EQ(costs.transfer(kind, 0, false, shape).ns, 37000);
  EXPECT_EQ(costs.algorithm_times(comm::op(kind.communication), 1, false, shape).front().algorithm,
            "hierarchical");
}

TEST(Collective, MeasuredGroupsTakeTheMeasuredTime) {
  Cluster c = two_levels();
  c.measured = {{"all_reduce", 16, 2, "log", {1000, 4000}, {10, 20}}};
  c.validate("levels");
  const CostModel costs(c, std::nullopt, 1);
  Kind kind;
  kind.op = "all_reduce";
  kind.communication = comm::find("all_reduce");
  const auto us = [&](int64_t bytes) {
    kind.bytes = bytes;
    return static_cast<double>(costs.transfer(kind, 0, false, first(c, 16)).ns) * 1e-3;
  };
  EXPECT_NEAR(us(1000), 10, 1e-3);
  EXPECT_NEAR(us(2000), std::sqrt(200.0), 1e-3);
  EXPECT_NEAR(us(8000), 40, 1e-3);
  EXPECT_NEAR(us(1), 10, 1e-3);
  EXPECT_EQ(costs.transfer(kind, 0, false, first(c, 16)).provenance, Provenance::interpolated);
  EXPECT_EQ(costs.transfer(kind, 0, false, first(c, 32)).provenance, Provenance::analytic);
}

}  // namespace
}  // namespace hocket::cost

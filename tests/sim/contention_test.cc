// SPDX-License-Identifier: Apache-2.0
// Links that can be full, on a fat tree of 8 nodes of 2 devices with an adapter each, in leaves of
// 2 nodes.
#include "sim/contention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/cluster_util.h"

namespace hocket::sim {
namespace {

cost::Cluster tree(double oversubscription) {
  cost::Cluster c = test::cluster_of(8, 2);
  c.topology.levels = {test::leaves_of(4, oversubscription)};
  return c;
}

/// Returns the number of links kept if every rank of the first leaf sends to the second one in two
/// queues, each filling its adapter. `over_access`: the transfers' share of the uplink over that of
/// the adapter.
int32_t kept(double oversubscription, double over_access) {
  const cost::Network network(tree(oversubscription));
  Contention contention;
  for (int32_t rank = 0; rank < 4; ++rank) {
    Contention::Flow flow{network.passed_by_message(rank, rank + 4), {}};
    for (int32_t queue = 0; queue < 2; ++queue) {
      Contention::PeakShares peak{.queue = queue};
      peak.share[1] = 1;
      peak.share[2] = oversubscription / 4;
      peak.over_access[2] = over_access;
      flow.peaks.push_back(peak);
    }
    contention.add(flow);
  }
  contention.drop_never_full_links();
  return contention.num_links();
}

// Both transfers of a rank ask for half of the leaf's uplink, which four ranks would fill twice.
// But they pass one adapter, which carries one at a time, so the uplink is full only when all four
// adapters are.
TEST(Contention, AccessLinksBoundTheLoadOfUplinks) {
  EXPECT_EQ(kept(1, 1.0 / 4), 4 + 4);       // adapters of senders and receivers
  EXPECT_EQ(kept(2, 2.0 / 4), 4 + 4 + 2);   // the adapters of a leaf fill its uplink twice
  EXPECT_EQ(kept(1, INFINITY), 4 + 4 + 2);  // without an adapter there is no bound
}

TEST(Contention, ViewsDistinguishFlowsByTheirSharers) {
  // Ranks 0 and 1 share no link; rank 2 sends twice over its adapter, which is then kept.
  const cost::Network network(tree(1));
  Contention contention;
  const auto add = [&](int32_t from, int32_t to, int32_t queue) {
    Contention::Flow flow{network.passed_by_message(from, to), {}};
    Contention::PeakShares peak{.queue = queue};
    peak.share[1] = 1;
    flow.peaks.push_back(peak);
    return contention.add(flow);
  };
  const Contention::FlowId alone = add(0, 4, 0);
  const Contention::FlowId other = add(1, 5, 0);
  const Contention::FlowId first = add(2, 6, 0);
  const Contention::FlowId second = add(2, 6, 1);
  contention.drop_never_full_links();
  EXPECT_EQ(contention.num_links(), 2);
  const std::vector<int32_t> views = contention.views({0, 0, 0, 1});
  EXPECT_EQ(views[alone], views[other]);
  EXPECT_NE(views[alone], views[first]);
  EXPECT_EQ(views[first], views[second]);
  EXPECT_EQ(contention.uses(first, false).size(), 2u);  // of both adapters
  EXPECT_EQ(contention.uses(first, true).size(), 1u);   // which have equal sharers
  EXPECT_TRUE(contention.uses(alone, true).empty());
}

}  // namespace
}  // namespace hocket::sim

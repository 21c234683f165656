// SPDX-License-Identifier: Apache-2.0
// Graph of links: every pair's path goes up and down again through connected links, with the
// capacities of the file.
#include "cost/network.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "base/error.h"
#include "tests/cluster_util.h"

namespace hocket::cost {
namespace {

using Kind = NetworkLink::Kind;

/// Returns 4 nodes of 4 devices. PCIe switches of 2 devices are inside nodes, leaf switches of 2
/// nodes above them.
Cluster tree(bool rails, int64_t adapters) {
  Cluster c = test::cluster_of(4, 4);
  c.links.inter.efficiency.value = 0.5;
  c.topology.rails = rails;
  c.topology.adapters_per_node = adapters;
  c.topology.levels.resize(2);
  c.topology.levels[0].name = "PCIe switch";
  c.topology.levels[0].devices = 2;
  c.topology.levels[0].bandwidth.value = 16e9;
  c.topology.levels[0].latency.value = 3e-6;
  c.topology.levels[1] = test::leaves_of(8, 2);
  c.validate("tree");
  return c;
}

std::vector<NetworkLink> path(const Network& network, int32_t from, int32_t to) {
  std::vector<NetworkLink> links;
  for (const int64_t id : network.route(from, to).links) {
    links.push_back(network.link(id));
  }
  return links;
}

TEST(Network, RoutesGoUpAndDownThroughTheLevels) {
  const Network network(tree(false, 0));
  EXPECT_TRUE(network.route(3, 3).links.empty());
  // Neighbours of a pair, then of another pair of the node.
  using D = Direction;
  EXPECT_EQ(path(network, 0, 1),
            (std::vector<NetworkLink>{{Kind::device, D::up, -1, 0, 0, 100e9},
                                      {Kind::device, D::down, -1, 0, 1, 100e9}}));
  EXPECT_EQ(path(network, 1, 2),
            (std::vector<NetworkLink>{{Kind::device, D::up, -1, 0, 1, 100e9},
                                      {Kind::uplink, D::up, 0, 0, 0, 16e9},
                                      {Kind::uplink, D::down, 0, 0, 1, 16e9},
                                      {Kind::device, D::down, -1, 0, 2, 100e9}}));
  EXPECT_DOUBLE_EQ(network.route(1, 2).latency_s, 4e-6);
  // Another node of the leaf: two adapters. Another leaf: half of 8 adapters of 5 GB/s.
  EXPECT_EQ(path(network, 1, 6),
            (std::vector<NetworkLink>{{Kind::adapter, D::up, -1, 0, 1, 5e9},
                                      {Kind::adapter, D::down, -1, 0, 6, 5e9}}));
  EXPECT_EQ(path(network, 1, 14),
            (std::vector<NetworkLink>{{Kind::adapter, D::up, -1, 0, 1, 5e9},
                                      {Kind::uplink, D::up, 1, 0, 0, 20e9},
                                      {Kind::uplink, D::down, 1, 0, 1, 20e9},
                                      {Kind::adapter, D::down, -1, 0, 14, 5e9}}));
  EXPECT_THROW(network.route(0, 16), Error);
}

TEST(Network, RailRoutesHopToTheRightAdapterFirst) {
  const Network network(tree(true, 2));
  // Device 0 has adapter 0, device 14 (the third of its node) adapter 1: through device 2.
  using D = Direction;
  EXPECT_EQ(path(network, 0, 14),
            (std::vector<NetworkLink>{{Kind::device, D::up, -1, 0, 0, 100e9},
                                      {Kind::device, D::down, -1, 0, 2, 100e9},
                                      {Kind::adapter, D::up, -1, 0, 1, 5e9},
                                      {Kind::uplink, D::up, 1, 1, 0, 5e9},
                                      {Kind::uplink, D::down, 1, 1, 1, 5e9},
                                      {Kind::adapter, D::down, -1, 0, 7, 5e9}}));
  EXPECT_EQ(path(network, 0, 12).size(), 4u);
}

// Ranks 1 and 2 of one node, and 9 of the other leaf, on nodes of 4 with 2 adapters: three devices,
// three pairs, the adapters 0 and 1 of the first node and 0 of the third, both leaves; each once
// and both ways, for the lowest rank that needs it.
TEST(Network, AGroupPassesEachLinkOnceInBothDirections) {
  const Network network(tree(false, 2));
  const std::vector<int32_t> ranks = {1, 2, 9};
  std::map<std::tuple<int32_t, int64_t>, int32_t> owners;  // by block and set
  for (const PassedLink& passed : network.passed_by_group(ranks)) {
    const NetworkLink link = network.link(passed.link);
    const auto [it, fresh] = owners.emplace(std::pair(passed.block, link.set), passed.owner);
    EXPECT_EQ(fresh, link.direction == Direction::up);
    EXPECT_EQ(it->second, passed.owner);
    EXPECT_EQ(link.bytes_per_s, network.bytes_per_s(passed.block));
    // Beside a pair's uplink lies its lowest member's device, beside a leaf's that one's adapter.
    ASSERT_EQ(passed.access_link >= 0, passed.block >= 2);
    if (passed.access_link >= 0) {
      const NetworkLink access = network.link(passed.access_link);
      EXPECT_EQ(access.kind, passed.block == 2 ? Kind::device : Kind::adapter);
      EXPECT_EQ(access.direction, link.direction);
      const std::map<int32_t, int64_t> adapters = {{1, 0}, {2, 1}, {9, 4}};
      EXPECT_EQ(access.set, passed.block == 2 ? passed.owner : adapters.at(passed.owner));
    }
  }
  const std::map<std::tuple<int32_t, int64_t>, int32_t> expected = {
      {{0, 1}, 1}, {{0, 2}, 2}, {{0, 9}, 9}, {{1, 0}, 1}, {{1, 1}, 2}, {{1, 4}, 9},
      {{2, 0}, 1}, {{2, 1}, 2}, {{2, 4}, 9}, {{3, 0}, 1}, {{3, 1}, 9}};
  EXPECT_EQ(owners, expected);
  // A message passes its route, on account of the sender.
  std::vector<int64_t> links;
  for (const PassedLink& passed : network.passed_by_message(1, 14)) {
    links.push_back(passed.link);
    EXPECT_EQ(passed.owner, 1);
    if (passed.access_link >= 0) {
      const NetworkLink link = network.link(passed.link);
      const NetworkLink access = network.link(passed.access_link);
      EXPECT_EQ(access.kind, Kind::adapter);
      EXPECT_EQ(access.direction, link.direction);
      EXPECT_EQ(access.set, link.direction == Direction::up ? 0 : 7);
    }
  }
  EXPECT_EQ(links, network.route(1, 14).links);
}

TEST(Network, LinkIdsAreUnique) {
  for (const bool rails : {false, true}) {
    const Network network(tree(rails, 2));
    // 16 devices, 8 adapters, 8 pairs, 2 leaves on one plane or two; both directions.
    EXPECT_EQ(network.size(), 2 * (16 + 8 + 8 + (rails ? 4 : 2)));
    for (int32_t from = 0; from < 16; ++from) {
      for (int32_t to = 0; to < 16; ++to) {
        const std::vector<NetworkLink> links = path(network, from, to);
        EXPECT_EQ(links.size() % 2, 0u);
        size_t ups = 0;
        for (const NetworkLink& link : links) {
          EXPECT_GT(link.bytes_per_s, 0);
          ups += link.direction == Direction::up ? 1 : 0;
        }
        EXPECT_EQ(ups * 2, links.size());
      }
    }
    for (int64_t id = 1; id < network.size(); ++id) {
      EXPECT_FALSE(network.link(id) == network.link(id - 1));
    }
  }
}

}  // namespace
}  // namespace hocket::cost

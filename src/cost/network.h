// SPDX-License-Identifier: Apache-2.0
// Links of a cluster one by one: a graph of directed links with capacities, and the path of a pair
// of ranks through it. A replay shares these links among flows; the closed forms of collective.h
// use the same levels.
//
//   device ── switch of the node ── device        links.intra, one link per device and direction
//   device ── set ── set ── ...                   topology.levels below the node
//   node ── adapter ── leaf ── spine ── ...       links.inter, then topology.levels above the node
//
// With `rails` every adapter number has its own planes at all levels above. A sender to another
// number first hands its bytes to the device beside the right adapter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cost/cluster.h"

namespace hocket::cost {

enum class Direction : uint8_t { up, down };

/// One directed link. `set`: number of its lower end: a device, an adapter (node x adapters +
/// number) or a set of the level.
struct NetworkLink {
  enum class Kind : uint8_t { device, adapter, uplink } kind = Kind::device;
  Direction direction = Direction::up;
  int32_t level = -1;  ///< index in Topology::levels, for an uplink
  int32_t plane = 0;   ///< for an uplink on rails
  int64_t set = 0;
  double bytes_per_s = 0;
  bool operator==(const NetworkLink&) const = default;
};

/// Path of bytes from one rank to another.
struct Route {
  std::vector<int64_t> links;  ///< ids, in order
  double latency_s = 0;        ///< of one step: that of the link class and of the levels
  double start_s = 0;
};

/// Blocks of identical links: devices, adapters, then every level.
inline constexpr size_t kLinkBlocks = 2 + kMaxLevels;

/// Link that a transfer passes if it passes links of this block at all.
struct PassedLink {
  int64_t link = 0;
  int32_t block = 0;
  int32_t owner = 0;  ///< lowest rank whose traffic passes it
  /// For an uplink: the adapter or device link, in the same direction, that all of the owner's
  /// traffic through it passes too. -1: none.
  int64_t access_link = -1;
};

class Network {
 public:
  explicit Network(const Cluster& cluster);

  /// Returns the number of links; their ids are 0 to size() - 1.
  int64_t size() const { return size_; }
  NetworkLink link(int64_t id) const;
  /// Returns the route between two ranks, without links from a rank to itself. Throws Error for a
  /// rank that the cluster lacks.
  Route route(int32_t from, int32_t to) const;
  /// Returns the links, in both directions and ordered by id, of the devices, adapters and sets of
  /// a group's members. Requires: `ranks` is ascending.
  std::vector<PassedLink> passed_by_group(std::span<const int32_t> ranks) const;
  /// Returns the links of a route, in order. The owner is the sender.
  std::vector<PassedLink> passed_by_message(int32_t from, int32_t to) const;
  /// Returns the block of the links that are PassedLink::access_link those of this one; -1 for
  /// devices and adapters.
  int32_t access_block(int32_t block) const;
  /// Returns the capacity of each link of a block in its direction.
  double bytes_per_s(int32_t block) const {
    return blocks_[static_cast<size_t>(block)].bytes_per_s;
  }
  const Cluster& cluster() const { return cluster_; }

 private:
  /// Links of one kind and level, numbered by set, plane and direction.
  struct Block {
    NetworkLink::Kind kind;
    int32_t level;
    int64_t sets, planes, first;
    double bytes_per_s;
  };
  int64_t id(size_t block, int64_t set, int64_t plane, Direction direction) const;
  size_t block_of(int64_t id) const;
  /// Returns the number, within its node, of the adapter of a rank.
  int64_t adapter_of(int64_t rank) const;
  void add(NetworkLink::Kind kind, int32_t level, int64_t sets, int64_t planes, double bytes_per_s);

  Cluster cluster_;
  std::vector<Block> blocks_;  // devices, adapters, then every level
  int64_t size_ = 0;
};

}  // namespace hocket::cost

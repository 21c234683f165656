// SPDX-License-Identifier: Apache-2.0
// Links are numbered in blocks, so that a cluster of any size takes no memory per link.
#include "cost/network.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace hocket::cost {
namespace {

constexpr size_t kDevices = 0, kAdapters = 1, kLevels = 2;

}  // namespace

Network::Network(const Cluster& cluster) : cluster_(cluster) {
  using Kind = NetworkLink::Kind;
  add(Kind::device, -1, cluster_.capacity(), 1, cluster_.links.intra.bytes_per_s());
  add(Kind::adapter, -1, cluster_.nodes * cluster_.adapters(), 1,
      cluster_.links.inter.bytes_per_s());
  const std::vector<SwitchLevel>& levels = cluster_.topology.levels;
  for (size_t i = 0; i < levels.size(); ++i) {
    const SwitchLevel& level = levels[i];
    const bool above = level.devices > cluster_.devices_per_node;
    const int64_t planes = above && cluster_.topology.rails ? cluster_.adapters() : 1;
    const int64_t sets = (cluster_.capacity() + level.devices - 1) / level.devices;
    add(Kind::uplink, static_cast<int32_t>(i), sets, planes,
        cluster_.uplink(level) / static_cast<double>(planes));
  }
}

void Network::add(NetworkLink::Kind kind, int32_t level, int64_t sets, int64_t planes,
                  double bytes_per_s) {
  blocks_.push_back({kind, level, sets, planes, size_, bytes_per_s});
  size_ += sets * planes * 2;
}

int64_t Network::id(size_t block, int64_t set, int64_t plane, Direction direction) const {
  const Block& of = blocks_[block];
  return of.first + (set * of.planes + plane) * 2 + (direction == Direction::down ? 1 : 0);
}

size_t Network::block_of(int64_t id) const {
  HOCKET_CHECK(id >= 0 && id < size_, "no link {} of {}", id, size_);
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.end(), id,
                       [](int64_t value, const Block& block) { return value < block.first; });
  return static_cast<size_t>(after - blocks_.begin()) - 1;
}

int64_t Network::adapter_of(int64_t rank) const {
  return rank % cluster_.devices_per_node * cluster_.adapters() / cluster_.devices_per_node;
}

NetworkLink Network::link(int64_t id) const {
  const Block& block = blocks_[block_of(id)];
  const int64_t number = id - block.first;
  const Direction direction = number % 2 == 1 ? Direction::down : Direction::up;
  return {block.kind,
          direction,
          block.level,
          static_cast<int32_t>(number / 2 % block.planes),
          number / 2 / block.planes,
          block.bytes_per_s};
}

Route Network::route(int32_t from, int32_t to) const {
  for (const int32_t rank : {from, to}) {
    if (rank < 0 || rank >= cluster_.capacity()) {
      fail(cluster_.name, "no rank {}; expected 0 to {}", rank, cluster_.capacity() - 1);
    }
  }
  Route route;
  if (from == to) return route;
  const std::vector<SwitchLevel>& levels = cluster_.topology.levels;
  const int64_t per_node = cluster_.devices_per_node;
  const bool leaves = from / per_node != to / per_node;
  const Link& by = leaves ? cluster_.links.inter : cluster_.links.intra;
  const Curve& message = by.message.given() ? by.message : by.long_messages();
  route.latency_s = message.latency.value;
  route.start_s = message.start.value;
  std::vector<int64_t> down;  // the way to `to`, in reverse
  int64_t plane = 0;
  if (!leaves) {
    route.links.push_back(id(kDevices, from, 0, Direction::up));
    down.push_back(id(kDevices, to, 0, Direction::down));
  } else {
    // Each end uses its own adapter. On rails the receiver's adapter number counts, and the bytes
    // first go to the device beside that adapter.
    const int64_t adapters = cluster_.adapters();
    const int64_t taken = adapter_of(to);
    int64_t used = adapter_of(from);
    if (cluster_.topology.rails && used != taken) {
      const int64_t beside = from / per_node * per_node + to % per_node;
      route.links.push_back(id(kDevices, from, 0, Direction::up));
      route.links.push_back(id(kDevices, beside, 0, Direction::down));
      route.latency_s += cluster_.links.intra.latency.value;
      used = taken;
    }
    plane = cluster_.topology.rails ? taken : 0;
    route.links.push_back(id(kAdapters, from / per_node * adapters + used, 0, Direction::up));
    down.push_back(id(kAdapters, to / per_node * adapters + taken, 0, Direction::down));
  }
  for (size_t i = 0; i < levels.size(); ++i) {
    const bool above = levels[i].devices > per_node;
    const int64_t near = from / levels[i].devices, far = to / levels[i].devices;
    if (above != leaves || near == far) continue;
    route.links.push_back(id(kLevels + i, near, plane, Direction::up));
    down.push_back(id(kLevels + i, far, plane, Direction::down));
    route.latency_s += levels[i].latency.value;
  }
  route.links.insert(route.links.end(), down.rbegin(), down.rend());
  return route;
}

int32_t Network::access_block(int32_t block) const {
  const Block& of = blocks_[static_cast<size_t>(block)];
  if (of.kind != NetworkLink::Kind::uplink) return -1;
  const SwitchLevel& level = cluster_.topology.levels[static_cast<size_t>(of.level)];
  return static_cast<int32_t>(level.devices > cluster_.devices_per_node ? kAdapters : kDevices);
}

std::vector<PassedLink> Network::passed_by_group(std::span<const int32_t> ranks) const {
  // Ranks are ascending, so that the first one of a set is its lowest.
  const std::vector<SwitchLevel>& levels = cluster_.topology.levels;
  std::vector<PassedLink> list;
  list.reserve(ranks.size() * 2 * (kLevels + levels.size()));
  for (const int32_t rank : ranks) {
    const int64_t adapter = adapter_of(rank);
    const int64_t on_node = rank / cluster_.devices_per_node * cluster_.adapters() + adapter;
    const auto pass = [&](size_t block, int64_t set, int64_t plane) {
      for (const Direction direction : {Direction::up, Direction::down}) {
        const int32_t with = access_block(static_cast<int32_t>(block));
        const int64_t lower = with == static_cast<int32_t>(kAdapters) ? on_node : rank;
        list.push_back({id(block, set, plane, direction), static_cast<int32_t>(block), rank,
                        with < 0 ? -1 : id(static_cast<size_t>(with), lower, 0, direction)});
      }
    };
    pass(kDevices, rank, 0);
    pass(kAdapters, on_node, 0);
    for (size_t i = 0; i < levels.size(); ++i) {
      const bool above = levels[i].devices > cluster_.devices_per_node;
      const int64_t plane = above && cluster_.topology.rails ? adapter : 0;
      pass(kLevels + i, rank / levels[i].devices, plane);
    }
  }
  std::sort(list.begin(), list.end(), [](const PassedLink& left, const PassedLink& right) {
    return std::tie(left.link, left.owner) < std::tie(right.link, right.owner);
  });
  const auto same = [](const PassedLink& left, const PassedLink& right) {
    return left.link == right.link;
  };
  list.erase(std::unique(list.begin(), list.end(), same), list.end());
  return list;
}

std::vector<PassedLink> Network::passed_by_message(int32_t from, int32_t to) const {
  // Traffic upwards comes from the last adapter or device link before it; traffic downwards goes to
  // the next one.
  std::vector<PassedLink> list;
  for (const int64_t link : route(from, to).links) {
    list.push_back({link, static_cast<int32_t>(block_of(link)), from});
  }
  const auto find_access_links = [&](auto first, auto last, Direction direction) {
    int64_t lower = -1;
    for (auto passed = first; passed != last; ++passed) {
      if (access_block(passed->block) < 0) {
        lower = passed->link;
      } else if (link(passed->link).direction == direction) {
        passed->access_link = lower;
      }
    }
  };
  find_access_links(list.begin(), list.end(), Direction::up);
  find_access_links(list.rbegin(), list.rend(), Direction::down);
  return list;
}

}  // namespace hocket::cost

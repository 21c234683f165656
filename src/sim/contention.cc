// SPDX-License-Identifier: Apache-2.0
// Bounds on what links may have to carry, and the symmetry of who shares them.
#include "sim/contention.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace hocket::sim {

int32_t Contention::add(Place place) {
  std::erase_if(place.links, [&](const cost::Passed& passed) {
    return std::none_of(place.most.begin(), place.most.end(), [&](const auto& queue) {
      return queue.second[static_cast<size_t>(passed.block)] > 0;
    });
  });
  places_.push_back(std::move(place));
  return static_cast<int32_t>(places_.size()) - 1;
}

void Contention::settle() {
  // A queue of a rank does one transfer at a time. So what a link may have to carry is at most the
  // sum, over the queues of the ranks that its places count for, of the largest share in each.
  struct Claim {
    int64_t link;
    int64_t queue;  ///< of a rank
    double share;
  };
  std::vector<Claim> claims;
  for (const Place& place : places_) {
    for (const cost::Passed& passed : place.links) {
      for (const auto& [queue, shares] : place.most) {
        const int64_t of = int64_t{passed.owner} * kQueues + queue;
        claims.push_back({passed.link, of, shares[static_cast<size_t>(passed.block)]});
      }
    }
  }
  std::sort(claims.begin(), claims.end(), [](const Claim& left, const Claim& right) {
    return std::tie(left.link, left.queue, right.share) <
           std::tie(right.link, right.queue, left.share);
  });
  constexpr double kFull = 1 + 1e-9;
  std::vector<int64_t> kept;
  for (size_t i = 0; i < claims.size();) {
    const int64_t link = claims[i].link;
    double sum = 0;
    for (int64_t queue = -1; i < claims.size() && claims[i].link == link; ++i) {
      sum += claims[i].queue == queue ? 0 : claims[i].share;
      queue = claims[i].queue;
    }
    if (sum > kFull) {
      kept.push_back(link);
    }
  }
  for (Place& place : places_) {
    std::erase_if(place.links, [&](cost::Passed& passed) {
      const auto at = std::lower_bound(kept.begin(), kept.end(), passed.link);
      if (at == kept.end() || *at != passed.link) return true;
      passed.link = at - kept.begin();
      return false;
    });
  }
  num_links_ = static_cast<int32_t>(kept.size());
}

bool Contention::symmetric() {
  // Links are alike if the same orbits lie on them, as often; ranks of a class then see the same if
  // the places of an orbit lie on as many links of each kind. That is all that a rank's replay
  // could find different in another one of its class.
  std::vector<std::vector<Pair>> sharers(static_cast<size_t>(num_links_));
  for (const Place& place : places_) {
    for (const cost::Passed& passed : place.links) {
      sharers[static_cast<size_t>(passed.link)].push_back({place.orbit, passed.block});
    }
  }
  std::map<std::vector<Pair>, int32_t> kinds;
  alike_.clear();
  sharers_.clear();
  for (std::vector<Pair>& list : sharers) {
    std::sort(list.begin(), list.end());
    const auto [it, fresh] = kinds.try_emplace(list, static_cast<int32_t>(kinds.size()));
    alike_.push_back(it->second);
    if (fresh) {
      sharers_.push_back(std::move(list));
    }
  }
  std::map<int32_t, std::vector<Pair>> by_orbit;
  for (const Place& place : places_) {
    std::vector<Pair> here;
    for (const cost::Passed& passed : place.links) {
      here.push_back({passed.block, alike_[static_cast<size_t>(passed.link)]});
    }
    std::sort(here.begin(), here.end());
    if (by_orbit.try_emplace(place.orbit, here).first->second != here) return false;
  }
  return true;
}

std::vector<LinkUse> Contention::uses(int32_t place, bool merged) const {
  const Place& asked = places_[static_cast<size_t>(place)];
  std::vector<LinkUse> list;
  for (const cost::Passed& passed : asked.links) {
    if (!merged) {
      list.push_back({static_cast<int32_t>(passed.link), passed.block, 1});
      continue;
    }
    const int32_t kind = alike_[static_cast<size_t>(passed.link)];
    const std::vector<Pair>& sharers = sharers_[static_cast<size_t>(kind)];
    const auto count = std::count(sharers.begin(), sharers.end(), Pair(asked.orbit, passed.block));
    list.push_back({kind, passed.block, static_cast<int32_t>(count)});
  }
  if (merged) {
    const auto key = [](const LinkUse& use) { return std::pair(use.link, use.block); };
    std::sort(list.begin(), list.end(),
              [&](const LinkUse& left, const LinkUse& right) { return key(left) < key(right); });
    const auto same = [&](const LinkUse& left, const LinkUse& right) {
      return key(left) == key(right);
    };
    list.erase(std::unique(list.begin(), list.end(), same), list.end());
  }
  return list;
}

}  // namespace hocket::sim

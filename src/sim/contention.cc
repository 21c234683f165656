// SPDX-License-Identifier: Apache-2.0
// Upper bounds on the load of links, and the symmetry between transfers that share them.
#include "sim/contention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"

namespace hocket::sim {

int32_t Contention::add(Place place) {
  std::erase_if(place.links, [&](const cost::Passed& passed) {
    return std::none_of(place.most.begin(), place.most.end(), [&](const Most& queue) {
      return queue.share[static_cast<size_t>(passed.block)] > 0;
    });
  });
  places_.push_back(std::move(place));
  return static_cast<int32_t>(places_.size()) - 1;
}

void Contention::settle() {
  // A queue of a rank runs one transfer at a time. Therefore the load of a link is at most the sum,
  // over the queues of the ranks that contribute to it, of the largest share in each queue. The
  // bound of an uplink is tighter: all traffic of one rank through it also passes one link beside
  // it. That link is never more than full, which bounds the rank's traffic through the uplink.
  struct Claim {
    int64_t link;
    int64_t beside;
    int64_t queue;  ///< queue of a rank
    double share;
    double most;  ///< bound on all claims with this link beside
  };
  std::vector<Claim> claims;
  for (const Place& place : places_) {
    for (const cost::Passed& passed : place.links) {
      const size_t block = static_cast<size_t>(passed.block);
      for (const Most& most : place.most) {
        const int64_t of = int64_t{passed.owner} * kQueues + most.queue;
        const double bound = passed.beside < 0 ? INFINITY : most.over_beside[block];
        claims.push_back({passed.link, passed.beside, of, most.share[block], bound});
      }
    }
  }
  std::sort(claims.begin(), claims.end(), [](const Claim& left, const Claim& right) {
    return std::tie(left.link, left.beside, left.queue, right.share) <
           std::tie(right.link, right.beside, right.queue, left.share);
  });
  constexpr double kFull = 1 + 1e-9;
  std::vector<int64_t> kept;
  for (size_t i = 0; i < claims.size();) {
    const int64_t link = claims[i].link;
    double sum = 0;
    while (i < claims.size() && claims[i].link == link) {
      const int64_t beside = claims[i].beside;
      double part = 0;
      double bound = 0;
      int64_t queue = -1;
      for (; i < claims.size() && claims[i].link == link && claims[i].beside == beside; ++i) {
        part += claims[i].queue == queue ? 0 : claims[i].share;
        bound = std::max(bound, claims[i].most);
        queue = claims[i].queue;
      }
      sum += std::min(part, bound);
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

std::vector<int32_t> Contention::views(const std::vector<int32_t>& orbits) {
  // Links are equivalent if they carry equally many transfers of every orbit. The view of a place
  // counts its links by equivalence class. Nothing else about links can distinguish two places.
  orbits_ = orbits;
  std::vector<std::vector<Pair>> sharers(static_cast<size_t>(num_links_));
  for (size_t place = 0; place < places_.size(); ++place) {
    for (const cost::Passed& passed : places_[place].links) {
      sharers[static_cast<size_t>(passed.link)].push_back({orbits_[place], passed.block});
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
  std::map<std::vector<Pair>, int32_t> seen;
  std::vector<int32_t> views;
  for (const Place& place : places_) {
    std::vector<Pair> here;
    for (const cost::Passed& passed : place.links) {
      here.push_back({passed.block, alike_[static_cast<size_t>(passed.link)]});
    }
    std::sort(here.begin(), here.end());
    const auto number = static_cast<int32_t>(seen.size());
    views.push_back(seen.try_emplace(std::move(here), number).first->second);
  }
  return views;
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
    const auto count = std::count(sharers.begin(), sharers.end(),
                                  Pair(orbits_[static_cast<size_t>(place)], passed.block));
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

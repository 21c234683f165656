// SPDX-License-Identifier: Apache-2.0
// Upper bounds on the load of links, and the symmetry between transfers that share them.
#include "sim/contention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"

namespace hocket::sim {

Contention::FlowId Contention::add(Flow flow) {
  std::erase_if(flow.links, [&](const cost::PassedLink& passed) {
    return std::none_of(flow.peaks.begin(), flow.peaks.end(),
                        [&](const PeakShares& queue) { return queue.share[passed.block] > 0; });
  });
  flows_.push_back(std::move(flow));
  return flows_.size() - 1;
}

void Contention::drop_never_full_links() {
  // A queue of a rank runs one transfer at a time. Therefore the load of a link has a bound: the
  // sum, over the queues of the ranks that contribute to it, of the largest share in each queue.
  // The bound of an uplink is tighter: all traffic of one rank through it also passes one access
  // link. That link is never more than full, which bounds the rank's traffic through the uplink.
  struct Claim {
    int64_t link;
    int64_t access;
    int64_t queue;  ///< queue of a rank
    double share;
    double bound;  ///< on all claims with this access link
  };
  std::vector<Claim> claims;
  for (const Flow& flow : flows_) {
    for (const cost::PassedLink& passed : flow.links) {
      const int32_t block = passed.block;
      for (const PeakShares& peak : flow.peaks) {
        const int64_t of = int64_t{passed.owner} * kQueues + peak.queue;
        const double bound = passed.access_link < 0 ? INFINITY : peak.over_access[block];
        claims.push_back({passed.link, passed.access_link, of, peak.share[block], bound});
      }
    }
  }
  std::sort(claims.begin(), claims.end(), [](const Claim& left, const Claim& right) {
    return std::tie(left.link, left.access, left.queue, right.share) <
           std::tie(right.link, right.access, right.queue, left.share);
  });
  constexpr double kFull = 1 + 1e-9;
  std::vector<int64_t> kept;
  for (size_t i = 0; i < claims.size();) {
    const int64_t link = claims[i].link;
    double sum = 0;
    while (i < claims.size() && claims[i].link == link) {
      const int64_t access = claims[i].access;
      double part = 0;
      double bound = 0;
      int64_t queue = -1;
      for (; i < claims.size() && claims[i].link == link && claims[i].access == access; ++i) {
        part += claims[i].queue == queue ? 0 : claims[i].share;
        bound = std::max(bound, claims[i].bound);
        queue = claims[i].queue;
      }
      sum += std::min(part, bound);
    }
    if (sum > kFull) {
      kept.push_back(link);
    }
  }
  for (Flow& flow : flows_) {
    std::erase_if(flow.links, [&](cost::PassedLink& passed) {
      const auto at = std::lower_bound(kept.begin(), kept.end(), passed.link);
      if (at == kept.end() || *at != passed.link) return true;
      passed.link = at - kept.begin();
      return false;
    });
  }
  num_links_ = std::ssize(kept);
}

std::vector<int32_t> Contention::views(const std::vector<int32_t>& orbits) {
  // Links are equivalent if they carry equally many transfers of every orbit. The view of a flow
  // counts its links by equivalence class. Nothing else about links can distinguish two flows.
  orbits_ = orbits;
  std::vector<Sharers> sharers(num_links_);
  for (size_t flow = 0; flow < flows_.size(); ++flow) {
    for (const cost::PassedLink& passed : flows_[flow].links) {
      sharers[passed.link].push_back({orbits_[flow], passed.block});
    }
  }
  std::map<Sharers, LinkClassId> classes;
  link_class_of_.clear();
  sharers_.clear();
  for (Sharers& list : sharers) {
    std::sort(list.begin(), list.end());
    const auto [it, fresh] = classes.try_emplace(list, classes.size());
    link_class_of_.push_back(it->second);
    if (fresh) {
      sharers_.push_back(std::move(list));
    }
  }
  std::map<std::vector<std::pair<int32_t, LinkClassId>>, int32_t> seen;
  std::vector<int32_t> views;
  for (const Flow& flow : flows_) {
    std::vector<std::pair<int32_t, LinkClassId>> here;
    for (const cost::PassedLink& passed : flow.links) {
      here.push_back({passed.block, link_class_of_[passed.link]});
    }
    std::sort(here.begin(), here.end());
    views.push_back(seen.try_emplace(std::move(here), seen.size()).first->second);
  }
  return views;
}

std::vector<LinkUse> Contention::uses(FlowId flow, bool merged) const {
  const Flow& asked = flows_[flow];
  std::vector<LinkUse> list;
  for (const cost::PassedLink& passed : asked.links) {
    if (!merged) {
      list.push_back({passed.link, passed.block, 1});
      continue;
    }
    const LinkClassId link_class = link_class_of_[passed.link];
    const Sharers& sharers = sharers_[link_class];
    const std::pair here(orbits_[flow], passed.block);
    const int32_t count = std::count(sharers.begin(), sharers.end(), here);
    list.push_back({link_class.value(), passed.block, count});
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

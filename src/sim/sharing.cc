// SPDX-License-Identifier: Apache-2.0
// Speeds of concurrent activities: processor sharing of cores, and max-min fair sharing of links by
// progressive filling (Bertsekas, Gallager, "Data Networks", 6.5.2), restricted to full links and
// their transfers. Doubles are added, multiplied and divided in a fixed order, so that every
// machine gets the same result.
#include "sim/sharing.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace hocket::sim {

using program::kNone;

Sharing::Sharing(const std::vector<int32_t>& ranks, int32_t num_links, const SharingRules& rules)
    : ranks_(ranks),
      rules_(rules),
      on_node_(static_cast<size_t>(ranks.back() / std::max(1, rules.devices_per_node)) + 1),
      compute_task_of_(ranks.size(), kNone),
      transferring_(ranks.size(), 0),
      links_(static_cast<size_t>(num_links)) {
  if (rules_.transfer_beside_compute != 1) {
    transfers_of_.resize(ranks.size());
  }
}

int32_t Sharing::node_of(RankIndex index) const {
  return ranks_[index] / std::max(1, rules_.devices_per_node);
}

Sharing::ActivityId Sharing::add(const Activity& activity) {
  if (free_.empty()) {
    activities_.push_back(activity);
    return activities_.size() - 1;
  }
  const ActivityId id = free_.back();
  free_.pop_back();
  const uint32_t visited = activities_[id].visited;
  activities_[id] = activity;
  activities_[id].visited = visited;
  return id;
}

void Sharing::free(ActivityId id) {
  events_.remove(id);
  free_.push_back(id);
}

void Sharing::set_speed(ActivityId id, double speed, int64_t now) {
  // Times are rounded up to whole nanoseconds, except for the rounding error of doubles.
  constexpr double kRoundingSlackNs = 1e-3;
  constexpr double kMaxNs = 4e18;
  Activity& activity = activities_[id];
  if (activity.speed == speed) return;
  activity.remaining -= static_cast<double>(now - activity.since) * activity.speed;
  activity.remaining = std::max(0.0, activity.remaining);
  activity.since = now;
  activity.speed = speed;
  const double ns = std::ceil(activity.remaining / speed - kRoundingSlackNs);
  const int64_t end = now + static_cast<int64_t>(std::clamp(ns, 0.0, kMaxNs));
  events_.set(id, {end, activity.index, activity.task});
}

bool Sharing::pop() {
  const ActivityId id = events_.top();
  const int64_t now = events_.event(id).ns;
  Activity& ended = activities_[id];
  if (ended.demand && ended.latency) {
    begin_data(id, now);
    return false;
  }
  const Activity copy = ended;
  free(id);
  if (copy.demand) {
    if (!transfers_of_.empty()) {
      for (const RankIndex rank : copy.ranks) {
        std::erase(transfers_of_[rank], id);
      }
    }
    leave_links(id, now);
  } else {
    const int32_t node = node_of(copy.index);
    std::erase(on_node_[node], id);
    change_cores(node, now);
    if (!copy.of_host) {
      compute_task_of_[copy.index] = kNone;
      change_computing(copy.index, -1, now);
    }
  }
  return true;
}

void Sharing::begin_work(RankIndex index, TaskId task, int64_t ns, bool of_host, int64_t now) {
  Activity work;
  work.index = index;
  work.task = task;
  work.remaining = static_cast<double>(ns);
  work.since = now;
  work.of_host = of_host;
  const ActivityId id = add(work);
  const int32_t node = node_of(index);
  on_node_[node].push_back(id);
  set_speed(id, work_speed(work), now);
  change_cores(node, now);
  if (!of_host) {
    HOCKET_CHECK(compute_task_of_[index] == kNone, "rank {} computes twice", ranks_[index]);
    compute_task_of_[index] = id;
    change_computing(index, +1, now);
  }
}

double Sharing::work_speed(const Activity& work) const {
  const bool beside_transfer = !work.of_host && transferring_[work.index] > 0;
  const double beside = beside_transfer ? rules_.compute_beside_transfer : 1;
  if (rules_.cores_per_node <= 0) return 1 / beside;
  const auto& running = on_node_[node_of(work.index)];
  const int64_t demand = int64_t{rules_.threads_per_rank} * std::ssize(running);
  const int64_t cores = rules_.cores_per_node;
  return demand <= cores ? 1 / beside
                         : static_cast<double>(cores) / (static_cast<double>(demand) * beside);
}

void Sharing::change_cores(int32_t node, int64_t now) {
  if (rules_.cores_per_node <= 0) return;
  for (const ActivityId id : on_node_[node]) {
    set_speed(id, work_speed(activities_[id]), now);
  }
}

void Sharing::change_transfers(RankIndex index, int change, int64_t now) {
  transferring_[index] += change;
  const ActivityId work = compute_task_of_[index];
  if (work != kNone && rules_.compute_beside_transfer != 1) {
    set_speed(work, work_speed(activities_[work]), now);
  }
}

void Sharing::change_computing(RankIndex index, int change, int64_t now) {
  if (transfers_of_.empty()) return;
  for (const ActivityId id : transfers_of_[index]) {
    Activity& transfer = activities_[id];
    const bool before = transfer.computing > 0;
    transfer.computing += change;
    if ((transfer.computing > 0) == before || transfer.latency) continue;
    changed_links_.clear();
    for (const LinkUse& use : transfer.uses) {
      if (load_of(transfer, use) > 0 && links_[use.link].load > kLoadUnits) {
        changed_links_.push_back(use.link);
      }
    }
    if (changed_links_.empty()) {
      set_speed(id, max_speed(transfer), now);
    } else {
      share_links(now);
    }
  }
}

double Sharing::load_of(const Activity& transfer, const LinkUse& use) {
  return transfer.demand->share[use.block] * use.count;
}

int64_t Sharing::load_units(double load) {
  return static_cast<int64_t>(load * static_cast<double>(kLoadUnits));
}

double Sharing::max_speed(const Activity& transfer) const {
  return transfer.computing > 0 ? 1 / rules_.transfer_beside_compute : 1;
}

void Sharing::begin_transfer(RankIndex index, TaskId task, const Demand& demand,
                             std::span<const LinkUse> uses, std::span<const RankIndex> ranks,
                             int64_t now) {
  Activity transfer;
  transfer.index = index;
  transfer.task = task;
  transfer.remaining = static_cast<double>(demand.latency_ns);
  transfer.since = now;
  transfer.demand = &demand;
  transfer.uses = uses;
  transfer.ranks = ranks;
  transfer.latency = true;
  if (!transfers_of_.empty()) {
    for (const RankIndex rank : ranks) {
      transfer.computing += compute_task_of_[rank] != kNone;
    }
  }
  const ActivityId id = add(transfer);
  if (!transfers_of_.empty()) {
    for (const RankIndex rank : ranks) {
      transfers_of_[rank].push_back(id);
    }
  }
  if (demand.latency_ns > 0) {
    set_speed(id, 1, now);
  } else {
    begin_data(id, now);
  }
}

void Sharing::begin_data(ActivityId id, int64_t now) {
  Activity& transfer = activities_[id];
  transfer.latency = false;
  transfer.remaining = static_cast<double>(transfer.demand->data_ns);
  transfer.since = now;
  transfer.speed = 0;
  changed_links_.clear();
  for (const LinkUse& use : transfer.uses) {
    const double load = load_of(transfer, use);
    if (load <= 0) continue;
    Link& link = links_[use.link];
    link.on.push_back({id, load});
    link.load += load_units(load);
    if (link.load > kLoadUnits) {
      changed_links_.push_back(use.link);
    }
  }
  if (changed_links_.empty()) {
    set_speed(id, max_speed(transfer), now);
  } else {
    share_links(now);
  }
}

void Sharing::leave_links(ActivityId id, int64_t now) {
  const Activity& transfer = activities_[id];
  changed_links_.clear();
  for (const LinkUse& use : transfer.uses) {
    const double load = load_of(transfer, use);
    if (load <= 0) continue;
    Link& link = links_[use.link];
    if (link.load > kLoadUnits) {
      changed_links_.push_back(use.link);
    }
    link.load -= load_units(load);
    std::erase_if(link.on, [&](const OnLink& on) { return on.id == id; });
  }
  if (!changed_links_.empty()) {
    share_links(now);
  }
}

void Sharing::share_links(int64_t now) {
  // Collects the transfers on the changed links, the other full links of those, and so on. No other
  // transfer can change its speed.
  ++visit_;
  affected_.clear();
  for (const SharedLinkId link : changed_links_) {
    links_[link].visited = visit_;
  }
  for (size_t i = 0; i < changed_links_.size(); ++i) {
    for (const OnLink& on : links_[changed_links_[i]].on) {
      Activity& transfer = activities_[on.id];
      if (transfer.visited == visit_) continue;
      transfer.visited = visit_;
      transfer.fixed = false;
      affected_.push_back(on.id);
      for (const LinkUse& use : transfer.uses) {
        Link& link = links_[use.link];
        if (link.visited == visit_ || link.load <= kLoadUnits) continue;
        if (load_of(transfer, use) <= 0) continue;
        link.visited = visit_;
        changed_links_.push_back(use.link);
      }
    }
  }
  fill(now);
}

void Sharing::fill(int64_t now) {
  // All transfers speed up together, measured in bytes/s at the link that each loads most. A
  // transfer that reaches its maximum stays at its speed, and so do all transfers on a link that is
  // full. The rest continue. `slope`: load that a link gains per byte/s; `remaining`: its free
  // share.
  const auto rate = [&](ActivityId id) {
    const Activity& transfer = activities_[id];
    return transfer.demand->bytes_per_s * max_speed(transfer);
  };
  const auto summed = [&](const Link& link) {
    double slope = 0;
    for (const OnLink& on : link.on) {
      const Activity& transfer = activities_[on.id];
      slope += transfer.fixed ? 0 : on.load / transfer.demand->bytes_per_s;
    }
    return slope;
  };
  for (const SharedLinkId number : changed_links_) {
    Link& link = links_[number];
    link.remaining = 1;
    link.slope = link.slope_summed = summed(link);
    link.open = static_cast<int32_t>(link.on.size());
  }
  std::sort(affected_.begin(), affected_.end(), [&](ActivityId left, ActivityId right) {
    const Activity& a = activities_[left];
    const Activity& b = activities_[right];
    const double rate_a = rate(left);
    const double rate_b = rate(right);
    return std::tie(rate_a, a.index, a.task) < std::tie(rate_b, b.index, b.task);
  });
  double level = 0;
  size_t next = 0;
  for (size_t fixed = 0; fixed < affected_.size();) {
    while (activities_[affected_[next]].fixed) {
      ++next;
    }
    Link* first = nullptr;
    double fills_at = rate(affected_[next]);
    for (const SharedLinkId number : changed_links_) {
      Link& link = links_[number];
      if (link.open == 0) continue;
      if (link.slope < 1e-3 * link.slope_summed) {
        link.slope = link.slope_summed = summed(link);
      }
      const double at = std::max(level, link.remaining / link.slope);
      if (at < fills_at) {
        fills_at = at;
        first = &link;
      }
    }
    level = std::max(level, fills_at);
    if (!first) {
      Activity& transfer = activities_[affected_[next]];
      fix_speed(transfer, max_speed(transfer));
      ++fixed;
      continue;
    }
    for (const OnLink& on : first->on) {
      Activity& transfer = activities_[on.id];
      if (transfer.fixed) continue;
      fix_speed(transfer, std::min(max_speed(transfer), level / transfer.demand->bytes_per_s));
      ++fixed;
    }
  }
  for (const ActivityId id : affected_) {
    set_speed(id, activities_[id].fixed_speed, now);
  }
}

void Sharing::fix_speed(Activity& transfer, double speed) {
  transfer.fixed = true;
  transfer.fixed_speed = speed;
  for (const LinkUse& use : transfer.uses) {
    Link& link = links_[use.link];
    const double load = load_of(transfer, use);
    if (link.visited != visit_ || load <= 0) continue;
    link.remaining -= load * speed;
    link.slope -= load / transfer.demand->bytes_per_s;
    --link.open;
  }
}

}  // namespace hocket::sim

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

int32_t Sharing::node_of(int32_t index) const {
  return ranks_[static_cast<size_t>(index)] / std::max(1, rules_.devices_per_node);
}

int32_t Sharing::add(const Running& running) {
  if (free_.empty()) {
    running_.push_back(running);
    return static_cast<int32_t>(running_.size()) - 1;
  }
  const int32_t id = free_.back();
  free_.pop_back();
  const uint32_t visited = running_[static_cast<size_t>(id)].visited;
  running_[static_cast<size_t>(id)] = running;
  running_[static_cast<size_t>(id)].visited = visited;
  return id;
}

void Sharing::free(int32_t id) {
  events_.remove(id);
  free_.push_back(id);
}

void Sharing::set_speed(int32_t id, double speed, int64_t now) {
  // Times are rounded up to whole nanoseconds, except for the rounding error of doubles.
  constexpr double kRoundingSlackNs = 1e-3;
  constexpr double kMaxNs = 4e18;
  Running& running = running_[static_cast<size_t>(id)];
  if (running.speed == speed) return;
  running.remaining -= static_cast<double>(now - running.since) * running.speed;
  running.remaining = std::max(0.0, running.remaining);
  running.since = now;
  running.speed = speed;
  const double ns = std::ceil(running.remaining / speed - kRoundingSlackNs);
  const int64_t end = now + static_cast<int64_t>(std::clamp(ns, 0.0, kMaxNs));
  events_.set(id, {end, running.index, running.task});
}

bool Sharing::pop() {
  const int32_t id = events_.top();
  const int64_t now = events_.event(id).ns;
  Running& ended = running_[static_cast<size_t>(id)];
  if (ended.demand && ended.latency) {
    begin_data(id, now);
    return false;
  }
  const Running copy = ended;
  free(id);
  if (copy.demand) {
    if (!transfers_of_.empty()) {
      for (const int32_t rank : copy.ranks) {
        std::erase(transfers_of_[static_cast<size_t>(rank)], id);
      }
    }
    leave_links(id, now);
  } else {
    const int32_t node = node_of(copy.index);
    std::erase(on_node_[static_cast<size_t>(node)], id);
    change_cores(node, now);
    if (!copy.of_host) {
      compute_task_of_[static_cast<size_t>(copy.index)] = kNone;
      change_computing(copy.index, -1, now);
    }
  }
  return true;
}

void Sharing::begin_work(int32_t index, TaskId task, int64_t ns, bool of_host, int64_t now) {
  Running work;
  work.index = index;
  work.task = task;
  work.remaining = static_cast<double>(ns);
  work.since = now;
  work.of_host = of_host;
  const int32_t id = add(work);
  const int32_t node = node_of(index);
  on_node_[static_cast<size_t>(node)].push_back(id);
  set_speed(id, work_speed(work), now);
  change_cores(node, now);
  if (!of_host) {
    HOCKET_CHECK(compute_task_of_[static_cast<size_t>(index)] == kNone, "rank {} computes twice",
                 ranks_[static_cast<size_t>(index)]);
    compute_task_of_[static_cast<size_t>(index)] = id;
    change_computing(index, +1, now);
  }
}

double Sharing::work_speed(const Running& work) const {
  const bool beside_transfer = !work.of_host && transferring_[static_cast<size_t>(work.index)] > 0;
  const double beside = beside_transfer ? rules_.compute_beside_transfer : 1;
  if (rules_.cores_per_node <= 0) return 1 / beside;
  const auto& running = on_node_[static_cast<size_t>(node_of(work.index))];
  const int64_t demand = int64_t{rules_.threads_per_rank} * std::ssize(running);
  const int64_t cores = rules_.cores_per_node;
  return demand <= cores ? 1 / beside
                         : static_cast<double>(cores) / (static_cast<double>(demand) * beside);
}

void Sharing::change_cores(int32_t node, int64_t now) {
  if (rules_.cores_per_node <= 0) return;
  for (const int32_t id : on_node_[static_cast<size_t>(node)]) {
    set_speed(id, work_speed(running_[static_cast<size_t>(id)]), now);
  }
}

void Sharing::change_transfers(int32_t index, int change, int64_t now) {
  transferring_[static_cast<size_t>(index)] += change;
  const int32_t work = compute_task_of_[static_cast<size_t>(index)];
  if (work != kNone && rules_.compute_beside_transfer != 1) {
    set_speed(work, work_speed(running_[static_cast<size_t>(work)]), now);
  }
}

void Sharing::change_computing(int32_t index, int change, int64_t now) {
  if (transfers_of_.empty()) return;
  for (const int32_t id : transfers_of_[static_cast<size_t>(index)]) {
    Running& transfer = running_[static_cast<size_t>(id)];
    const bool before = transfer.computing > 0;
    transfer.computing += change;
    if ((transfer.computing > 0) == before || transfer.latency) continue;
    changed_links_.clear();
    for (const LinkUse& use : transfer.uses) {
      if (load_of(transfer, use) > 0 && links_[static_cast<size_t>(use.link)].load > kLoadUnits) {
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

double Sharing::load_of(const Running& transfer, const LinkUse& use) {
  return transfer.demand->share[static_cast<size_t>(use.block)] * use.count;
}

int64_t Sharing::load_units(double load) {
  return static_cast<int64_t>(load * static_cast<double>(kLoadUnits));
}

double Sharing::max_speed(const Running& transfer) const {
  return transfer.computing > 0 ? 1 / rules_.transfer_beside_compute : 1;
}

void Sharing::begin_transfer(int32_t index, TaskId task, const Demand& demand,
                             std::span<const LinkUse> uses, std::span<const int32_t> ranks,
                             int64_t now) {
  Running transfer;
  transfer.index = index;
  transfer.task = task;
  transfer.remaining = static_cast<double>(demand.latency_ns);
  transfer.since = now;
  transfer.demand = &demand;
  transfer.uses = uses;
  transfer.ranks = ranks;
  transfer.latency = true;
  if (!transfers_of_.empty()) {
    for (const int32_t rank : ranks) {
      transfer.computing += compute_task_of_[static_cast<size_t>(rank)] != kNone;
    }
  }
  const int32_t id = add(transfer);
  if (!transfers_of_.empty()) {
    for (const int32_t rank : ranks) {
      transfers_of_[static_cast<size_t>(rank)].push_back(id);
    }
  }
  if (demand.latency_ns > 0) {
    set_speed(id, 1, now);
  } else {
    begin_data(id, now);
  }
}

void Sharing::begin_data(int32_t id, int64_t now) {
  Running& transfer = running_[static_cast<size_t>(id)];
  transfer.latency = false;
  transfer.remaining = static_cast<double>(transfer.demand->data_ns);
  transfer.since = now;
  transfer.speed = 0;
  changed_links_.clear();
  for (const LinkUse& use : transfer.uses) {
    const double load = load_of(transfer, use);
    if (load <= 0) continue;
    Link& link = links_[static_cast<size_t>(use.link)];
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

void Sharing::leave_links(int32_t id, int64_t now) {
  const Running& transfer = running_[static_cast<size_t>(id)];
  changed_links_.clear();
  for (const LinkUse& use : transfer.uses) {
    const double load = load_of(transfer, use);
    if (load <= 0) continue;
    Link& link = links_[static_cast<size_t>(use.link)];
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
  // Collects the transfers on the changed links, the other full links of these, and so on. No other
  // transfer can change its speed.
  ++visit_;
  affected_.clear();
  for (const int32_t link : changed_links_) {
    links_[static_cast<size_t>(link)].visited = visit_;
  }
  for (size_t i = 0; i < changed_links_.size(); ++i) {
    for (const OnLink& on : links_[static_cast<size_t>(changed_links_[i])].on) {
      Running& transfer = running_[static_cast<size_t>(on.id)];
      if (transfer.visited == visit_) continue;
      transfer.visited = visit_;
      transfer.fixed = false;
      affected_.push_back(on.id);
      for (const LinkUse& use : transfer.uses) {
        Link& link = links_[static_cast<size_t>(use.link)];
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
  // All transfers speed up together, measured in bytes/s at the link that each loads most. When a
  // transfer reaches its maximum or a link is full, that transfer or all on that link stay at their
  // speed, and the rest continue. `slope`: load that a link gains per byte/s; `remaining`: its free
  // share.
  const auto rate = [&](int32_t id) {
    const Running& transfer = running_[static_cast<size_t>(id)];
    return transfer.demand->bytes_per_s * max_speed(transfer);
  };
  const auto summed = [&](const Link& link) {
    double slope = 0;
    for (const OnLink& on : link.on) {
      const Running& transfer = running_[static_cast<size_t>(on.id)];
      slope += transfer.fixed ? 0 : on.load / transfer.demand->bytes_per_s;
    }
    return slope;
  };
  for (const int32_t number : changed_links_) {
    Link& link = links_[static_cast<size_t>(number)];
    link.remaining = 1;
    link.slope = link.slope_summed = summed(link);
    link.open = static_cast<int32_t>(link.on.size());
  }
  std::sort(affected_.begin(), affected_.end(), [&](int32_t left, int32_t right) {
    const Running& a = running_[static_cast<size_t>(left)];
    const Running& b = running_[static_cast<size_t>(right)];
    const double rate_a = rate(left);
    const double rate_b = rate(right);
    return std::tie(rate_a, a.index, a.task) < std::tie(rate_b, b.index, b.task);
  });
  double level = 0;
  size_t next = 0;
  for (size_t fixed = 0; fixed < affected_.size();) {
    while (running_[static_cast<size_t>(affected_[next])].fixed) {
      ++next;
    }
    Link* first = nullptr;
    double fills_at = rate(affected_[next]);
    for (const int32_t number : changed_links_) {
      Link& link = links_[static_cast<size_t>(number)];
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
      Running& transfer = running_[static_cast<size_t>(affected_[next])];
      fix_speed(transfer, max_speed(transfer));
      ++fixed;
      continue;
    }
    for (const OnLink& on : first->on) {
      Running& transfer = running_[static_cast<size_t>(on.id)];
      if (transfer.fixed) continue;
      fix_speed(transfer, std::min(max_speed(transfer), level / transfer.demand->bytes_per_s));
      ++fixed;
    }
  }
  for (const int32_t id : affected_) {
    set_speed(id, running_[static_cast<size_t>(id)].fixed_speed, now);
  }
}

void Sharing::fix_speed(Running& transfer, double speed) {
  transfer.fixed = true;
  transfer.fixed_speed = speed;
  for (const LinkUse& use : transfer.uses) {
    Link& link = links_[static_cast<size_t>(use.link)];
    const double load = load_of(transfer, use);
    if (link.visited != visit_ || load <= 0) continue;
    link.remaining -= load * speed;
    link.slope -= load / transfer.demand->bytes_per_s;
    --link.open;
  }
}

}  // namespace hocket::sim

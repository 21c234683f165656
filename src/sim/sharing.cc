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
      work_of_(ranks.size(), kNone),
      moving_(ranks.size(), 0),
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
  const uint32_t seen = running_[static_cast<size_t>(id)].seen;
  running_[static_cast<size_t>(id)] = running;
  running_[static_cast<size_t>(id)].seen = seen;
  return id;
}

void Sharing::free(int32_t id) {
  events_.remove(id);
  free_.push_back(id);
}

void Sharing::run_at(int32_t id, double speed, int64_t now) {
  // Times are rounded up to whole nanoseconds, except for the rounding error of doubles.
  constexpr double kNoise = 1e-3;
  constexpr double kMost = 4e18;
  Running& running = running_[static_cast<size_t>(id)];
  if (running.speed == speed) return;
  running.left -= static_cast<double>(now - running.since) * running.speed;
  running.left = std::max(0.0, running.left);
  running.since = now;
  running.speed = speed;
  const double ns = std::ceil(running.left / speed - kNoise);
  const int64_t end = now + static_cast<int64_t>(std::clamp(ns, 0.0, kMost));
  events_.set(id, {end, running.index, running.task});
}

bool Sharing::take() {
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
      work_of_[static_cast<size_t>(copy.index)] = kNone;
      computes(copy.index, -1, now);
    }
  }
  return true;
}

void Sharing::begin_work(int32_t index, TaskId task, int64_t ns, bool of_host, int64_t now) {
  Running work;
  work.index = index;
  work.task = task;
  work.left = static_cast<double>(ns);
  work.since = now;
  work.of_host = of_host;
  const int32_t id = add(work);
  const int32_t node = node_of(index);
  on_node_[static_cast<size_t>(node)].push_back(id);
  run_at(id, work_speed(work), now);
  change_cores(node, now);
  if (!of_host) {
    HOCKET_CHECK(work_of_[static_cast<size_t>(index)] == kNone, "rank {} computes twice",
                 ranks_[static_cast<size_t>(index)]);
    work_of_[static_cast<size_t>(index)] = id;
    computes(index, +1, now);
  }
}

double Sharing::work_speed(const Running& work) const {
  const bool beside_transfer = !work.of_host && moving_[static_cast<size_t>(work.index)] > 0;
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
    run_at(id, work_speed(running_[static_cast<size_t>(id)]), now);
  }
}

void Sharing::moves(int32_t index, int change, int64_t now) {
  moving_[static_cast<size_t>(index)] += change;
  const int32_t work = work_of_[static_cast<size_t>(index)];
  if (work != kNone && rules_.compute_beside_transfer != 1) {
    run_at(work, work_speed(running_[static_cast<size_t>(work)]), now);
  }
}

void Sharing::computes(int32_t index, int change, int64_t now) {
  if (transfers_of_.empty()) return;
  for (const int32_t id : transfers_of_[static_cast<size_t>(index)]) {
    Running& transfer = running_[static_cast<size_t>(id)];
    const bool before = transfer.computing > 0;
    transfer.computing += change;
    if ((transfer.computing > 0) == before || transfer.latency) continue;
    changed_.clear();
    for (const LinkUse& use : transfer.uses) {
      if (load_of(transfer, use) > 0 && links_[static_cast<size_t>(use.link)].load > kUnits) {
        changed_.push_back(use.link);
      }
    }
    if (changed_.empty()) {
      run_at(id, most(transfer), now);
    } else {
      share_links(now);
    }
  }
}

double Sharing::load_of(const Running& transfer, const LinkUse& use) {
  return transfer.demand->share[static_cast<size_t>(use.block)] * use.count;
}

int64_t Sharing::units(double load) {
  return static_cast<int64_t>(load * static_cast<double>(kUnits));
}

double Sharing::most(const Running& transfer) const {
  return transfer.computing > 0 ? 1 / rules_.transfer_beside_compute : 1;
}

void Sharing::begin_transfer(int32_t index, TaskId task, const Demand& demand,
                             std::span<const LinkUse> uses, std::span<const int32_t> ranks,
                             int64_t now) {
  Running transfer;
  transfer.index = index;
  transfer.task = task;
  transfer.left = static_cast<double>(demand.latency_ns);
  transfer.since = now;
  transfer.demand = &demand;
  transfer.uses = uses;
  transfer.ranks = ranks;
  transfer.latency = true;
  if (!transfers_of_.empty()) {
    for (const int32_t rank : ranks) {
      transfer.computing += work_of_[static_cast<size_t>(rank)] != kNone;
    }
  }
  const int32_t id = add(transfer);
  if (!transfers_of_.empty()) {
    for (const int32_t rank : ranks) {
      transfers_of_[static_cast<size_t>(rank)].push_back(id);
    }
  }
  if (demand.latency_ns > 0) {
    run_at(id, 1, now);
  } else {
    begin_data(id, now);
  }
}

void Sharing::begin_data(int32_t id, int64_t now) {
  Running& transfer = running_[static_cast<size_t>(id)];
  transfer.latency = false;
  transfer.left = static_cast<double>(transfer.demand->data_ns);
  transfer.since = now;
  transfer.speed = 0;
  changed_.clear();
  for (const LinkUse& use : transfer.uses) {
    const double load = load_of(transfer, use);
    if (load <= 0) continue;
    Link& link = links_[static_cast<size_t>(use.link)];
    link.on.push_back({id, load});
    link.load += units(load);
    if (link.load > kUnits) {
      changed_.push_back(use.link);
    }
  }
  if (changed_.empty()) {
    run_at(id, most(transfer), now);
  } else {
    share_links(now);
  }
}

void Sharing::leave_links(int32_t id, int64_t now) {
  const Running& transfer = running_[static_cast<size_t>(id)];
  changed_.clear();
  for (const LinkUse& use : transfer.uses) {
    const double load = load_of(transfer, use);
    if (load <= 0) continue;
    Link& link = links_[static_cast<size_t>(use.link)];
    if (link.load > kUnits) {
      changed_.push_back(use.link);
    }
    link.load -= units(load);
    std::erase_if(link.on, [&](const OnLink& on) { return on.id == id; });
  }
  if (!changed_.empty()) {
    share_links(now);
  }
}

void Sharing::share_links(int64_t now) {
  // Collects the transfers on the changed links, the other full links of these, and so on. No other
  // transfer can change its speed.
  ++sight_;
  met_.clear();
  for (const int32_t link : changed_) {
    links_[static_cast<size_t>(link)].seen = sight_;
  }
  for (size_t i = 0; i < changed_.size(); ++i) {
    for (const OnLink& on : links_[static_cast<size_t>(changed_[i])].on) {
      Running& transfer = running_[static_cast<size_t>(on.id)];
      if (transfer.seen == sight_) continue;
      transfer.seen = sight_;
      transfer.settled = false;
      met_.push_back(on.id);
      for (const LinkUse& use : transfer.uses) {
        Link& link = links_[static_cast<size_t>(use.link)];
        if (link.seen == sight_ || link.load <= kUnits || load_of(transfer, use) <= 0) continue;
        link.seen = sight_;
        changed_.push_back(use.link);
      }
    }
  }
  fill(now);
}

void Sharing::fill(int64_t now) {
  // All transfers speed up together, measured in bytes/s at the link that each loads most. When a
  // transfer reaches its maximum or a link is full, that transfer or all on that link stay at their
  // speed, and the rest continue. `slope`: load that a link gains per byte/s; `left`: its free
  // share.
  const auto rate = [&](int32_t id) {
    const Running& transfer = running_[static_cast<size_t>(id)];
    return transfer.demand->bytes_per_s * most(transfer);
  };
  const auto summed = [&](const Link& link) {
    double slope = 0;
    for (const OnLink& on : link.on) {
      const Running& transfer = running_[static_cast<size_t>(on.id)];
      slope += transfer.settled ? 0 : on.load / transfer.demand->bytes_per_s;
    }
    return slope;
  };
  for (const int32_t number : changed_) {
    Link& link = links_[static_cast<size_t>(number)];
    link.left = 1;
    link.slope = link.slope_summed = summed(link);
    link.open = static_cast<int32_t>(link.on.size());
  }
  std::sort(met_.begin(), met_.end(), [&](int32_t left, int32_t right) {
    const Running& a = running_[static_cast<size_t>(left)];
    const Running& b = running_[static_cast<size_t>(right)];
    const double rate_a = rate(left);
    const double rate_b = rate(right);
    return std::tie(rate_a, a.index, a.task) < std::tie(rate_b, b.index, b.task);
  });
  double level = 0;
  size_t next = 0;
  for (size_t settled = 0; settled < met_.size();) {
    while (running_[static_cast<size_t>(met_[next])].settled) {
      ++next;
    }
    Link* first = nullptr;
    double fills_at = rate(met_[next]);
    for (const int32_t number : changed_) {
      Link& link = links_[static_cast<size_t>(number)];
      if (link.open == 0) continue;
      if (link.slope < 1e-3 * link.slope_summed) {
        link.slope = link.slope_summed = summed(link);
      }
      const double at = std::max(level, link.left / link.slope);
      if (at < fills_at) {
        fills_at = at;
        first = &link;
      }
    }
    level = std::max(level, fills_at);
    if (!first) {
      Running& transfer = running_[static_cast<size_t>(met_[next])];
      settle(transfer, most(transfer));
      ++settled;
      continue;
    }
    for (const OnLink& on : first->on) {
      Running& transfer = running_[static_cast<size_t>(on.id)];
      if (transfer.settled) continue;
      settle(transfer, std::min(most(transfer), level / transfer.demand->bytes_per_s));
      ++settled;
    }
  }
  for (const int32_t id : met_) {
    run_at(id, running_[static_cast<size_t>(id)].wanted, now);
  }
}

void Sharing::settle(Running& transfer, double speed) {
  transfer.settled = true;
  transfer.wanted = speed;
  for (const LinkUse& use : transfer.uses) {
    Link& link = links_[static_cast<size_t>(use.link)];
    const double load = load_of(transfer, use);
    if (link.seen != sight_ || load <= 0) continue;
    link.left -= load * speed;
    link.slope -= load / transfer.demand->bytes_per_s;
    --link.open;
  }
}

}  // namespace hocket::sim

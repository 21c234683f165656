// SPDX-License-Identifier: Apache-2.0
// Naive fluid simulation of a program, as a reference for the engine. Every rank is replayed, and
// after every event all speeds are recomputed over all links and every task is checked.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "cost/network.h"
#include "sim/engine.h"
#include "tests/sim/sim_util.h"

namespace hocket::sim {

/// Durations of transfers on a network. A fifth of a task's `ns` is latency. Each kind of task has
/// a random share, from 0 to 1, of the bandwidth of every class of links.
class LinkDurations : public FixedDurations {
 public:
  LinkDurations(const Program& p, const cost::Cluster& cluster, uint32_t seed)
      : FixedDurations(p), p_(p), network_(cluster), seed_(seed) {}
  const cost::Network* network() const override { return &network_; }
  const Demand& demand(ClassId cls, TaskId task, ShapeId shape) override {
    const auto kind = p_.classes[cls].tasks[task].kind;
    const auto [it, fresh] = demands_.try_emplace({kind, shape});
    Demand& demand = it->second;
    if (!fresh) return demand;
    const int64_t ns = transfer_ns(cls, task, shape);
    demand.latency_ns = ns / 5;
    demand.data_ns = ns - demand.latency_ns;
    size_t fullest = 0;
    for (size_t block = 0; block < 2 + network_.cluster().topology.levels.size(); ++block) {
      demand.share[block] = fixed_share >= 0 ? fixed_share : draw(kind.value() * 8 + block);
      demand.share[block] *= block < 2 ? 1 : uplinks;
      if (demand.share[block] > demand.share[fullest]) {
        fullest = block;
      }
    }
    demand.bytes_per_s =
        demand.share[fullest] * network_.bytes_per_s(static_cast<int32_t>(fullest));
    return demand;
  }
  double fixed_share = -1;
  double uplinks = 1;  ///< factor on the random shares of uplinks

 private:
  double draw(size_t number) const {
    uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u + seed_ * 0xd1b54a32d192ed03u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    const double share = static_cast<double>(x % 1000) / 1000;
    return share < 0.2 ? 0 : std::min(1.0, share + 0.1);
  }
  const Program& p_;
  cost::Network network_;
  uint32_t seed_;
  std::map<std::pair<program::KindId, ShapeId>, Demand> demands_;
};

class Fluid {
 public:
  Fluid(const Program& p, Durations& durations, const ReplayOptions& options)
      : p_(p), durations_(durations), options_(options) {
    for (int32_t rank = 0; rank < p.num_ranks(); ++rank) {
      tasks_.emplace_back(list(rank).size());
    }
  }

  /// Returns the ends of all tasks, by rank.
  std::vector<std::vector<int64_t>> run() {
    while (true) {
      while (step()) {
      }
      if (active_.empty()) break;
      set_speeds();
      int64_t next = INT64_MAX;
      for (const Active& active : active_) {
        next = std::min(next, end_of(active));
      }
      for (Active& active : active_) {
        active.left -= static_cast<double>(next - now_) * active.speed;
      }
      now_ = next;
    }
    std::vector<std::vector<int64_t>> ends;
    for (const auto& of_rank : tasks_) {
      std::vector<int64_t>& row = ends.emplace_back();
      for (const State& state : of_rank) {
        row.push_back(state.end);
      }
    }
    return ends;
  }

 private:
  struct State {
    bool started = false;
    int64_t end = -1;
  };
  /// Work in progress: a task, or a transfer (a send, or a collective under its first member).
  struct Active {
    int32_t rank;
    size_t task;
    double left;
    bool transfer = false, latency = false;
    double speed = 0;
    std::vector<std::pair<int32_t, size_t>> members;
    const Demand* demand = nullptr;
    std::map<int64_t, double> loads;  ///< by link
  };

  const std::vector<program::Task>& list(int32_t rank) const {
    return p_.classes[size_t(p_.class_of(rank))].tasks;
  }
  const std::string& op(int32_t rank, size_t task) const { return p_.kind(list(rank)[task]).op; }
  bool collective(int32_t rank, size_t task) const {
    return program::is_collective(p_.kind(list(rank)[task]));
  }
  int64_t end_of(const Active& active) const {
    return now_ +
           std::max<int64_t>(0, static_cast<int64_t>(std::ceil(active.left / active.speed - 1e-3)));
  }

  /// Ends and starts all tasks that can now; returns false if none can.
  bool step() {
    bool any = false;
    for (size_t i = 0; i < active_.size(); ++i) {
      Active& active = active_[i];
      if (active.speed <= 0 || active.left > 1e-3 * active.speed + 1e-6) continue;
      any = true;
      if (active.transfer && active.latency) {
        active.latency = false;
        active.left = static_cast<double>(active.demand->data_ns);
        active.speed = active.left > 0 ? 0 : 1;
        continue;
      }
      for (const auto& [rank, task] : active.members) {
        tasks_[size_t(rank)][task].end = now_;
      }
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
      --i;
    }
    for (int32_t rank = 0; rank < p_.num_ranks(); ++rank) {
      for (size_t task = 0; task < list(rank).size(); ++task) {
        any |= try_start(rank, task);
      }
    }
    return any;
  }

  bool try_start(int32_t rank, size_t task) {
    State& state = tasks_[size_t(rank)][task];
    if (state.end >= 0) return false;
    const program::Task& what = list(rank)[task];
    if (!state.started) {
      for (const TaskId dep : what.deps) {
        if (tasks_[size_t(rank)][size_t(dep)].end < 0) return false;
      }
      for (size_t before = 0; before < task; ++before) {
        if (list(rank)[before].lane == what.lane && tasks_[size_t(rank)][before].end < 0) {
          return false;
        }
      }
      state.started = true;
      const ClassId cls = p_.class_of(rank);
      if (op(rank, task) == "send") {
        begin_send(rank, task);
      } else if (collective(rank, task)) {
        begin_collective(rank, task);
      } else if (op(rank, task) != "recv") {
        const double ns =
            double(durations_.work_ns_on(durations_.device_of(rank), cls, TaskId(task)));
        active_.push_back(
            {rank, task, ns, false, false, ns > 0 ? 0.0 : 1.0, {{rank, task}}, {}, {}});
      }
      return true;
    }
    if (op(rank, task) == "recv" && state.end < 0) {
      const auto [from, send] = sender(rank, task);
      if (tasks_[size_t(from)][send].end >= 0) {
        state.end = now_;
        return true;
      }
    }
    return false;
  }

  void begin(int32_t rank, size_t task, std::vector<std::pair<int32_t, size_t>> members,
             const std::vector<cost::PassedLink>& links) {
    Active active{rank, task, 0, true, true, 1, std::move(members), {}, {}};
    active.demand = &durations_.demand(p_.class_of(rank), TaskId(task), 0);
    active.left = double(active.demand->latency_ns);
    for (const cost::PassedLink& passed : links) {
      active.loads[passed.link] += active.demand->share[size_t(passed.block)];
    }
    active_.push_back(std::move(active));
  }
  void begin_send(int32_t rank, size_t task) {
    const int32_t to = p_.peer_of(list(rank)[task].peer_map(), rank);
    begin(rank, task, {{rank, task}}, durations_.network()->passed_by_message(rank, to));
  }
  void begin_collective(int32_t rank, size_t task) {
    const program::Task& what = list(rank)[task];
    const auto alike = [&](int32_t r, size_t t) {
      return collective(r, t) && list(r)[t].group == what.group && list(r)[t].lane == what.lane;
    };
    size_t number = 0;
    for (size_t t = 0; t < task; ++t) {
      number += alike(rank, t);
    }
    const std::vector<int32_t> ranks = p_.members(p_.groups[size_t(what.group)], rank);
    std::vector<std::pair<int32_t, size_t>> members;
    for (const int32_t member : ranks) {
      size_t left = number;
      for (size_t t = 0; t < list(member).size(); ++t) {
        if (!alike(member, t) || left-- > 0) continue;
        if (!tasks_[size_t(member)][t].started) return;
        members.push_back({member, t});
      }
    }
    begin(ranks[0], members[0].second, members, durations_.network()->passed_by_group(ranks));
  }
  std::pair<int32_t, size_t> sender(int32_t rank, size_t task) const {
    const program::Task& what = list(rank)[task];
    const int32_t from = p_.peer_of(what.peer_map(), rank);
    size_t number = 0;
    for (size_t t = 0; t < task; ++t) {
      number += op(rank, t) == "recv" && list(rank)[t].tag == what.tag &&
                p_.peer_of(list(rank)[t].peer_map(), rank) == from;
    }
    for (size_t t = 0; t < list(from).size(); ++t) {
      const program::Task& other = list(from)[t];
      if (op(from, t) == "send" && other.tag == what.tag &&
          p_.peer_of(other.peer_map(), from) == rank && number-- == 0) {
        return {from, t};
      }
    }
    return {-1, 0};
  }

  void set_speeds() {
    std::set<int32_t> computing;
    std::map<int32_t, int> moving, on_node;
    for (const Active& active : active_) {
      const Lane lane = list(active.rank)[active.task].lane;
      if (!active.transfer && lane == Lane::compute) {
        computing.insert(active.rank);
      }
      if (!active.transfer && (lane == Lane::compute || program::is_of_host(lane))) {
        ++on_node[active.rank / options_.devices_per_node];
      }
      for (const auto& [rank, task] : active.members) {
        moving[rank] += active.transfer;
      }
      if (active.transfer && op(active.rank, active.task) == "send") {
        // The receiver takes part once it has posted.
        const int32_t to = p_.peer_of(list(active.rank)[active.task].peer_map(), active.rank);
        for (size_t t = 0; t < list(to).size(); ++t) {
          if (op(to, t) == "recv" && tasks_[size_t(to)][t].started &&
              sender(to, t) == std::pair(active.rank, active.task)) {
            ++moving[to];
          }
        }
      }
    }
    std::vector<std::pair<Active*, double>> transfers;
    for (Active& active : active_) {
      if (!active.transfer) {
        active.speed = 1;
        const Lane lane = list(active.rank)[active.task].lane;
        if (lane != Lane::compute && !program::is_of_host(lane)) continue;
        if (options_.cores_per_node > 0) {
          const double demand =
              options_.threads_per_rank * on_node[active.rank / options_.devices_per_node];
          active.speed = std::min(1.0, options_.cores_per_node / demand);
        }
        const bool slowed = lane == Lane::compute && moving[active.rank] > 0;
        active.speed /= slowed ? options_.compute_beside_transfer : 1;
      } else if (active.latency) {
        active.speed = 1;
      } else {
        bool slowed = false;
        for (const auto& [rank, task] : active.members) {
          slowed |= computing.count(rank) > 0;
        }
        transfers.push_back({&active, slowed ? 1 / options_.transfer_beside_compute : 1});
      }
    }
    fill(transfers);
  }

  /// Computes max-min fair speeds, each at most its cap.
  void fill(std::vector<std::pair<Active*, double>> open) {
    std::map<int64_t, double> taken;
    while (!open.empty()) {
      double level = INFINITY;
      for (const auto& [active, cap] : open) {
        level = std::min(level, active->loads.empty() ? 0 : cap * active->demand->bytes_per_s);
      }
      std::map<int64_t, double> slope;
      for (const auto& [active, cap] : open) {
        for (const auto& [link, load] : active->loads) {
          slope[link] += load / active->demand->bytes_per_s;
        }
      }
      for (const auto& [link, sum] : slope) {
        if (sum > 0) {
          level = std::min(level, (1 - taken[link]) / sum);
        }
      }
      // Transfers at their cap, or on a link that is full at this level, are done.
      const auto done = [&](const std::pair<Active*, double>& entry) {
        const auto& [active, cap] = entry;
        const double rate = active->demand->bytes_per_s;
        bool full = active->loads.empty() || rate <= 0 || level >= cap * rate * (1 - 1e-12);
        for (const auto& [link, load] : active->loads) {
          full |= load > 0 && (1 - taken[link]) / slope[link] <= level * (1 + 1e-12);
        }
        return full;
      };
      std::vector<std::pair<Active*, double>> rest, ended;
      for (const auto& entry : open) {
        (done(entry) ? ended : rest).push_back(entry);
      }
      for (const auto& [active, cap] : ended) {
        const double rate = active->demand->bytes_per_s;
        active->speed = rate > 0 && !active->loads.empty() ? std::min(cap, level / rate) : cap;
        for (const auto& [link, load] : active->loads) {
          taken[link] += load * active->speed;
        }
      }
      open = std::move(rest);
    }
  }

  const Program& p_;
  Durations& durations_;
  const ReplayOptions options_;
  std::vector<std::vector<State>> tasks_;
  std::vector<Active> active_;
  int64_t now_ = 0;
};

}  // namespace hocket::sim

// SPDX-License-Identifier: Apache-2.0
#include "sim/whatif/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/stats.h"
#include "base/text.h"

namespace hocket::sim::whatif {
namespace {

constexpr double kTogether = 1e-5;  // seconds: what starts or ends within them does so at once
constexpr double kClocks = 1e-2;    // seconds: from these on a transfer that ends early is noted
constexpr double kOfStep = 1e-3;    // of a step: what clocks may be apart
constexpr int64_t kOneOf = 10;      // as many transfers at most may be impossible

/// Of what a step may lack (assemble()) there is no time where it does.
bool is_absent(const MeasuredRun& run, size_t cell) {
  return run.start[cell] == 0 && run.duration[cell] == 0;
}

bool has_others(const Group& group, const MeasuredRun& run) {
  return group.ops.size() > 1 || (group.across_replicas && run.replicas > 1);
}

/// How much earlier than its last member starts a transfer may seem to end: what reads the clock
/// does not do so at once, and less than this does not change what is found.
double tolerance(const MeasuredRun& run) {
  double sum = 0;
  for (const double seconds : run.measured_step) {
    sum += seconds;
  }
  return std::max(kTogether, kOfStep * sum / static_cast<double>(run.measured_step.size()));
}

/// By lane, when the first and the last member of a group started.
class Starts {
 public:
  explicit Starts(const MeasuredRun& run)
      : first(static_cast<size_t>(run.lanes())), last(first.size()), run_(run) {}

  void of(const Group& group) {
    std::fill(last.begin(), last.end(), -1e300);
    std::fill(first.begin(), first.end(), 1e300);
    for (const int32_t op : group.ops) {
      const double* start = &run_.start[run_.at(op, 0)];
      for (size_t lane = 0; lane < last.size(); ++lane) {
        last[lane] = std::max(last[lane], start[lane]);
        first[lane] = std::min(first[lane], start[lane]);
      }
    }
    const auto replicas = static_cast<size_t>(run_.replicas);
    for (size_t lane = 0; group.across_replicas && lane < last.size(); lane += replicas) {
      const auto at = static_cast<int64_t>(lane);
      std::fill_n(last.begin() + at, replicas,
                  *std::max_element(last.begin() + at, last.begin() + at + run_.replicas));
      std::fill_n(first.begin() + at, replicas,
                  *std::min_element(first.begin() + at, first.begin() + at + run_.replicas));
    }
  }

  std::vector<double> first, last;

 private:
  const MeasuredRun& run_;
};

/// Calls `f(op, lane, early)` for all that transfer: by how many seconds an op ended before the
/// last member of its group had started. On one clock that is never more than 0.
template <typename F>
void each_transfer(const MeasuredRun& run, F&& f) {
  Starts starts(run);
  for (const Group& group : run.groups) {
    if (!has_others(group, run)) continue;
    starts.of(group);
    for (size_t i = group.eager ? 1 : 0; i < group.ops.size(); ++i) {
      const int32_t op = group.ops[i];
      for (int32_t lane = 0; lane < run.lanes(); ++lane) {
        const size_t cell = run.at(op, lane);
        f(op, lane, starts.last[static_cast<size_t>(lane)] - run.start[cell] - run.duration[cell]);
      }
    }
  }
}

/// The clocks of workers, each with that of the first one.
class Clocks {
 public:
  explicit Clocks(MeasuredRun* run)
      : run_(*run),
        tolerance_(tolerance(*run)),
        offset_(run->workers.size(), 0),
        known_(run->workers.size(), 0) {}

  bool set() {
    // Are any wrong? How far is each from the first? Does it help to set them?
    const int64_t before = impossible();
    if (before == 0) return false;
    known_[0] = 1;
    while (follow_collectives() || follow_messages()) {
    }
    const auto unknown = std::count(known_.begin(), known_.end(), 0);
    double most = 0;
    for (double& offset : offset_) {
      offset = std::fabs(offset) > kTogether ? offset : 0;
      most = std::max(most, std::fabs(offset));
    }
    if (most == 0) return false;
    const std::vector<double> starts = run_.start;
    move();
    const int64_t after = count();
    if (after >= before) {
      run_.start = starts;
      return false;
    }
    measure_steps(&run_);
    run_.dropped.notes.push_back(fmt::format(
        "no event, but clocks of ranks differed by up to {}; they were set by when collectives "
        "ended and messages arrived: {} had ended before all their members had started, {} still "
        "{}{}",
        human_time(most), counted(before, "transfer"), after, after == 1 ? "has" : "have",
        unknown == 0 ? ""
                     : fmt::format("; {} had none in common with the first rank or took part in "
                                   "messages one way only, and stayed as they were",
                                   counted(static_cast<int64_t>(unknown), "clock"))));
    return true;
  }

 private:
  size_t clock_of(int32_t op, int32_t lane) const {
    return static_cast<size_t>(run_.ops[static_cast<size_t>(op)].worker * run_.replicas +
                               lane % run_.replicas);
  }
  double end(int32_t op, int32_t lane) const {
    return run_.start[run_.at(op, lane)] + run_.duration[run_.at(op, lane)];
  }

  int64_t count() const {
    int64_t early = 0;
    each_transfer(run_, [&](int32_t, int32_t, double by) { early += by > tolerance_; });
    return early;
  }

  /// How many transfers are; 0 if on no clock a tenth of them.
  int64_t impossible() const {
    std::vector<int64_t> all(offset_.size(), 0), early(offset_.size(), 0);
    each_transfer(run_, [&](int32_t op, int32_t lane, double by) {
      ++all[clock_of(op, lane)];
      early[clock_of(op, lane)] += by > tolerance_;
    });
    int64_t sum = 0;
    bool any = false;
    for (size_t clock = 0; clock < all.size(); ++clock) {
      sum += early[clock];
      any = any || early[clock] * kOneOf > all[clock];
    }
    return any ? sum : 0;
  }

  /// Members of a group in a step, each with when it ended.
  template <typename F>
  void each_member(const Group& group, int32_t step, F&& f) const {
    for (const int32_t op : group.ops) {
      for (int32_t replica = 0; replica < run_.replicas; ++replica) {
        const int32_t lane = step * run_.replicas + replica;
        f(replica, clock_of(op, lane), end(op, lane));
      }
    }
  }

  /// Of clocks that are not known those that share collectives with one that is. False: none does.
  bool follow_collectives() {
    std::vector<std::vector<double>> differences(offset_.size());
    std::vector<double> known_end(static_cast<size_t>(run_.replicas));
    std::vector<char> has(known_end.size());
    for (const Group& group : run_.groups) {
      if (group.eager || !has_others(group, run_)) continue;
      for (int32_t step = 0; step < static_cast<int32_t>(run_.steps.size()); ++step) {
        // Replicas are groups of their own, but for one across all of them.
        const auto one = [&](int32_t replica) {
          return group.across_replicas ? size_t{0} : static_cast<size_t>(replica);
        };
        std::fill(has.begin(), has.end(), 0);
        each_member(group, step, [&](int32_t replica, size_t clock, double at) {
          if (known_[clock] == 0 || has[one(replica)] != 0) return;
          has[one(replica)] = 1;
          known_end[one(replica)] = at - offset_[clock];
        });
        each_member(group, step, [&](int32_t replica, size_t clock, double at) {
          if (known_[clock] == 0 && has[one(replica)] != 0) {
            differences[clock].push_back(at - known_end[one(replica)]);
          }
        });
      }
    }
    bool any = false;
    for (size_t clock = 0; clock < offset_.size(); ++clock) {
      if (differences[clock].empty()) continue;
      offset_[clock] = median(differences[clock]);
      known_[clock] = 1;
      any = true;
    }
    return any;
  }

  /// The same by messages: the least time there, and back, from when a sender starts to when who
  /// receives ends, differ by twice the offset.
  bool follow_messages() {
    constexpr double kNever = 1e300;
    std::vector<double> there(offset_.size(), kNever), back(offset_.size(), kNever);
    for (const Group& group : run_.groups) {
      if (!group.eager) continue;
      for (int32_t lane = 0; lane < run_.lanes(); ++lane) {
        const size_t from = clock_of(group.ops[0], lane), to = clock_of(group.ops[1], lane);
        if (known_[from] == known_[to]) continue;
        const double takes = (end(group.ops[1], lane) - offset_[to]) -
                             (run_.start[run_.at(group.ops[0], lane)] - offset_[from]);
        double& least = known_[from] != 0 ? there[to] : back[from];
        least = std::min(least, takes);
      }
    }
    bool any = false;
    for (size_t clock = 0; clock < offset_.size(); ++clock) {
      if (there[clock] == kNever || back[clock] == kNever) continue;
      offset_[clock] = (there[clock] - back[clock]) / 2;
      known_[clock] = 1;
      any = true;
    }
    return any;
  }

  void move() {
    for (int32_t op = 0; op < static_cast<int32_t>(run_.ops.size()); ++op) {
      for (int32_t lane = 0; lane < run_.lanes(); ++lane) {
        const size_t cell = run_.at(op, lane);
        run_.start[cell] -= is_absent(run_, cell) ? 0 : offset_[clock_of(op, lane)];
      }
    }
  }

  MeasuredRun& run_;
  const double tolerance_;
  std::vector<double> offset_;  ///< seconds, by worker as MeasuredRun::workers
  std::vector<char> known_;
};

/// Who meets, of collectives of one kind.
using Met = std::vector<std::vector<int32_t>>;

Met by_order(const Collectives& kind) {
  Met met;
  for (const auto& [worker, ops] : kind.of_worker) {
    met.resize(std::max(met.size(), ops.size()));
    for (size_t k = 0; k < ops.size(); ++k) {
      met[k].push_back(ops[k]);
    }
  }
  return met;
}

Met by_number(const Collectives& kind, const MeasuredRun& run) {
  std::map<int32_t, std::vector<int32_t>> members;
  for (const auto& [worker, ops] : kind.of_worker) {
    for (const int32_t op : ops) {
      members[run.ops[static_cast<size_t>(op)].sequence].push_back(op);
    }
  }
  Met met;
  for (auto& [number, ops] : members) {
    met.push_back(std::move(ops));
  }
  return met;
}

/// Nobody ends a collective before its last member has started, so those of one were all in it at
/// that time, and have started before any starts the next one.
Met by_time(const Collectives& kind, const MeasuredRun& run) {
  std::vector<int32_t> ops;
  for (const auto& [worker, list] : kind.of_worker) {
    ops.insert(ops.end(), list.begin(), list.end());
  }
  const auto start = [&](int32_t op) { return run.start[run.at(op, 0)]; };
  std::stable_sort(ops.begin(), ops.end(),
                   [&](int32_t a, int32_t b) { return start(a) < start(b); });
  Met met;
  std::set<int32_t> there;
  double first_end = 0;
  for (const int32_t op : ops) {
    const int32_t worker = run.ops[static_cast<size_t>(op)].worker;
    if (met.empty() || start(op) > first_end + kTogether || !there.insert(worker).second) {
      met.emplace_back();
      there = {worker};
      first_end = 1e300;
    }
    met.back().push_back(op);
    first_end = std::min(first_end, start(op) + run.duration[run.at(op, 0)]);
  }
  return met;
}

/// Many members ended before all had started, in the first lane: more than a few, and a quarter.
bool is_impossible(const Met& met, const MeasuredRun& run) {
  constexpr int64_t kFew = 3, kQuarter = 4;
  const double most = tolerance(run);
  int64_t all = 0, early = 0;
  for (const std::vector<int32_t>& ops : met) {
    double last = -1e300;
    for (const int32_t op : ops) {
      last = std::max(last, run.start[run.at(op, 0)]);
    }
    for (const int32_t op : ops) {
      ++all;
      early += run.start[run.at(op, 0)] + run.duration[run.at(op, 0)] < last - most;
    }
  }
  return early > kFew && early * kQuarter > all;
}

/// Whether the starts of every worker are in the order of its ops: else when they ran says nothing.
bool is_in_order(const Collectives& kind, const MeasuredRun& run) {
  return std::all_of(kind.of_worker.begin(), kind.of_worker.end(), [&](const auto& of) {
    return std::is_sorted(of.second.begin(), of.second.end(), [&](int32_t a, int32_t b) {
      return run.start[run.at(a, 0)] < run.start[run.at(b, 0)];
    });
  });
}

void add_groups(const Met& met, MeasuredRun* run) {
  for (const std::vector<int32_t>& ops : met) {
    for (const int32_t op : ops) {
      run->ops[static_cast<size_t>(op)].group = static_cast<int32_t>(run->groups.size());
    }
    run->groups.push_back({ops, false, false});
  }
}

bool is_even(const Collectives& kind) {
  const size_t count = kind.of_worker.begin()->second.size();
  return std::all_of(kind.of_worker.begin(), kind.of_worker.end(),
                     [&](const auto& of) { return of.second.size() == count; });
}

}  // namespace

bool meet(const std::vector<Collectives>& kinds, bool timed, MeasuredRun* run) {
  // By their order those that all have; with these clocks are set; then the others.
  const size_t messages = run->groups.size();
  std::vector<Met> met(kinds.size());
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    if (kinds[kind].numbered || is_even(kinds[kind])) {
      met[kind] = kinds[kind].numbered ? by_number(kinds[kind], *run) : by_order(kinds[kind]);
      add_groups(met[kind], run);
    }
  }
  const bool moved = set_clocks(run);
  run->groups.resize(messages);
  int64_t paired = 0, lacking = 0;
  bool by_order_alone = false;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const bool odd = met[kind].empty();
    const bool doubtful = odd || (!kinds[kind].numbered && is_impossible(met[kind], *run));
    if (doubtful && timed && is_in_order(kinds[kind], *run)) {
      met[kind] = by_time(kinds[kind], *run);
      paired += static_cast<int64_t>(met[kind].size());
    } else if (odd) {
      met[kind] = by_order(kinds[kind]);
      by_order_alone = true;
    }
    const size_t members = std::max(kinds[kind].of_worker.size(), kinds[kind].num_members);
    lacking += std::count_if(met[kind].begin(), met[kind].end(),
                             [&](const auto& ops) { return ops.size() < members; });
    add_groups(met[kind], run);
  }
  if (lacking > 0) {
    run->dropped.notes.push_back(fmt::format(
        "the other members of {}: not all ranks have them; they wait for those that "
        "do{}",
        counted(lacking, "collective"),
        by_order_alone ? "; where starts do not say with whom they meet in their order" : ""));
  }
  if (paired > 0) {
    run->dropped.notes.push_back(
        fmt::format("no event, but who was in {} is known by when they ran alone: not all ranks "
                    "have as many of their kind",
                    counted(paired, "collective")));
  }
  return moved;
}

bool set_clocks(MeasuredRun* run) { return Clocks(run).set(); }

void measure_steps(MeasuredRun* run) {
  run->measured_step.clear();
  for (int32_t step = 0; step < static_cast<int32_t>(run->steps.size()); ++step) {
    double first = 1e300, last = -1e300;
    for (int32_t op = 0; op < static_cast<int32_t>(run->ops.size()); ++op) {
      for (int32_t replica = 0; replica < run->replicas; ++replica) {
        const size_t cell = run->at(op, step * run->replicas + replica);
        if (is_absent(*run, cell)) continue;
        first = std::min(first, run->start[cell]);
        last = std::max(last, run->start[cell] + run->duration[cell]);
      }
    }
    run->measured_step.push_back(last - first);
  }
}

void settle_transfers(MeasuredRun* run) {
  const int32_t lanes = run->lanes();
  Starts starts(*run);
  int64_t groups = 0, at_once = 0;
  for (const Group& group : run->groups) {
    if (!has_others(group, *run)) continue;
    starts.of(group);
    for (size_t lane = 0; lane < starts.last.size(); ++lane) {
      ++groups;
      at_once += starts.last[lane] - starts.first[lane] < kTogether;
    }
  }
  const bool transfers = at_once * kOneOf >= groups * (kOneOf - 1);
  const double apart = tolerance(*run);
  int64_t all = 0, early = 0, negative = 0;
  for (const Group& group : run->groups) {
    starts.of(group);
    for (const int32_t op : group.ops) {
      if (group.eager && op == group.ops.front()) continue;
      for (int32_t lane = 0; lane < lanes; ++lane) {
        const size_t cell = run->at(op, lane);
        const double waited = starts.last[static_cast<size_t>(lane)] - run->start[cell];
        ++all;
        early += run->duration[cell] - waited < -apart;
        if (!transfers) {
          run->duration[cell] -= waited;
          run->start[cell] += waited;
        }
        if (run->duration[cell] <= -kClocks) {
          run->duration[cell] = 0;
          ++negative;
        }
      }
    }
  }
  run->clocks_apart = early * kOneOf > all;
  if (run->clocks_apart) {
    run->dropped.notes.push_back(
        fmt::format("clocks apart: {} of {} ended more than {} before all had started; the time "
                    "that members wait for each other is not known, and no cause is named",
                    early, counted(all, "transfer"), human_time(apart)));
  } else if (negative > 0) {
    run->dropped.notes.push_back(
        fmt::format("the time of {} that ended more than 10 ms before all had started: clocks "
                    "apart; taken as 0",
                    counted(negative, "transfer")));
  }
}

}  // namespace hocket::sim::whatif

// SPDX-License-Identifier: Apache-2.0
#include "whatif/match_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "whatif/clocks.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace {

/// Groups of a kind of collective: the op of each member.
using Met = std::vector<std::vector<OpId>>;

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
  std::map<int32_t, std::vector<OpId>> members;
  for (const auto& [worker, ops] : kind.of_worker) {
    for (const OpId op : ops) {
      members[run.ops[op].sequence].push_back(op);
    }
  }
  Met met;
  for (auto& [number, ops] : members) {
    met.push_back(std::move(ops));
  }
  return met;
}

/// Matches by time. No member ends a collective before its last member has started. Members of one
/// collective are therefore all in it at that time, and have started before any starts the next
/// one.
Met by_time(const Collectives& kind, const MeasuredRun& run) {
  std::vector<OpId> ops;
  for (const auto& [worker, list] : kind.of_worker) {
    ops.insert(ops.end(), list.begin(), list.end());
  }
  const auto start = [&](OpId op) { return run.start[run.at(op, 0)]; };
  std::stable_sort(ops.begin(), ops.end(), [&](OpId a, OpId b) { return start(a) < start(b); });
  Met met;
  std::set<PatternWorkerId> there;
  double first_end = 0;
  for (const OpId op : ops) {
    const PatternWorkerId worker = run.ops[op].worker;
    if (met.empty() || start(op) > first_end + kSimultaneousSeconds ||
        !there.insert(worker).second) {
      met.emplace_back();
      there = {worker};
      first_end = 1e300;
    }
    met.back().push_back(op);
    first_end = std::min(first_end, start(op) + run.duration[run.at(op, 0)]);
  }
  return met;
}

/// Returns whether many members ended before all had started, in the first sample: more than a few,
/// and more than a quarter.
bool is_impossible(const Met& met, const MeasuredRun& run) {
  constexpr int64_t kMaxEarlyEnds = 3;
  constexpr double kMaxImpossibleShare = 0.25;
  const double most = tolerance(run);
  int64_t all = 0, early = 0;
  for (const std::vector<OpId>& ops : met) {
    double last = -1e300;
    for (const OpId op : ops) {
      last = std::max(last, run.start[run.at(op, 0)]);
    }
    for (const OpId op : ops) {
      ++all;
      early += run.start[run.at(op, 0)] + run.duration[run.at(op, 0)] < last - most;
    }
  }
  return early > kMaxEarlyEnds &&
         static_cast<double>(early) > kMaxImpossibleShare * static_cast<double>(all);
}

/// Returns whether every worker's starts follow the order of its ops; times are no evidence
/// otherwise.
bool is_in_order(const Collectives& kind, const MeasuredRun& run) {
  return std::all_of(kind.of_worker.begin(), kind.of_worker.end(), [&](const auto& of) {
    return std::is_sorted(of.second.begin(), of.second.end(), [&](OpId a, OpId b) {
      return run.start[run.at(a, 0)] < run.start[run.at(b, 0)];
    });
  });
}

void add_groups(const Met& met, MeasuredRun* run) {
  for (const std::vector<OpId>& ops : met) {
    for (const OpId op : ops) {
      run->ops[op].group = run->groups.size();
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

bool match_collectives(const std::vector<Collectives>& kinds, bool timed, MeasuredRun* run) {
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
      paired += met[kind].size();
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
    run->dropped.notes.push_back(
        fmt::format("the other members of {}: not all ranks have them; they wait for those that "
                    "do{}",
                    counted(lacking, "collective"),
                    by_order_alone ? "; where starts do not match them, in their order" : ""));
  }
  if (paired > 0) {
    run->dropped.notes.push_back(
        fmt::format("no event, but {} matched by time only: ranks recorded different numbers of "
                    "their kind",
                    counted(paired, "collective")));
  }
  return moved;
}

}  // namespace hocket::whatif

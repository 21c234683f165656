// SPDX-License-Identifier: Apache-2.0
#include "sim/whatif/measured_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace hocket::sim::whatif {
namespace {

/// How many steps that were dropped are named one by one.
constexpr size_t kNamedSteps = 8;

using Key = std::tuple<int32_t, int32_t, int32_t>;  // worker, name, sequence

Key key_of(const Observed& op) { return {op.worker, op.name, op.sequence}; }

struct Mixed {
  size_t operator()(const Key& key) const {
    const auto& [worker, name, sequence] = key;
    uint64_t x = static_cast<uint32_t>(worker) * 0x9E3779B97F4A7C15ull ^
                 static_cast<uint32_t>(name) * 0xC2B2AE3D27D4EB4Full ^
                 static_cast<uint32_t>(sequence) * 0x165667B19E3779F9ull;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ull;
    return x ^ (x >> 29);
  }
};

/// Of the ops of one step and replica: which there are, by a sum that no order changes.
struct Lane {
  std::vector<size_t> ops, extra;  ///< and those that may lack
  uint64_t signature = 0;
};

void number(std::vector<Observed>* seen) {
  std::vector<size_t> without;
  for (size_t i = 0; i < seen->size(); ++i) {
    if ((*seen)[i].sequence == kNone) {
      without.push_back(i);
    }
  }
  const auto of = [&](size_t i) {
    const Observed& op = (*seen)[i];
    return std::tuple(op.step, op.replica, op.worker, op.name, op.start);
  };
  std::stable_sort(without.begin(), without.end(),
                   [&](size_t a, size_t b) { return of(a) < of(b); });
  for (size_t i = 0; i < without.size(); ++i) {
    Observed& op = (*seen)[without[i]];
    const Observed* last = i > 0 ? &(*seen)[without[i - 1]] : nullptr;
    const bool same = last != nullptr && last->step == op.step && last->replica == op.replica &&
                      last->worker == op.worker && last->name == op.name;
    op.sequence = same ? last->sequence + 1 : 0;
  }
}

/// "dp 3 lacks 12 of 1,060 ops, for one forward-send 4 of worker 1".
std::string difference(const std::vector<Observed>& seen, const Lane& lane, const Lane& pattern,
                       const MeasuredRun& run, int32_t replica) {
  std::map<Key, int> have;
  for (const size_t i : pattern.ops) {
    --have[key_of(seen[i])];
  }
  for (const size_t i : lane.ops) {
    ++have[key_of(seen[i])];
  }
  int64_t lacks = 0, extra = 0;
  Key example{};
  for (const auto& [key, count] : have) {
    if (count != 0 && lacks + extra == 0) {
      example = key;
    }
    (count < 0 ? lacks : extra) += count < 0 ? -count : count;
  }
  const auto& [worker, name, sequence] = example;
  return fmt::format("replica {} {}{}{} of {} ops, one is {} {} of worker {}", replica,
                     lacks > 0 ? fmt::format("lacks {}", lacks) : "",
                     lacks > 0 && extra > 0 ? " and " : "",
                     extra > 0 ? fmt::format("has {} more than others", extra) : "",
                     pattern.ops.size(), run.names[static_cast<size_t>(name)], sequence, worker);
}

}  // namespace

void assemble(std::vector<Observed> seen, const std::string& where, MeasuredRun* run,
              int32_t optional) {
  // Lanes, and the pattern that most of them have; steps that have it in all replicas; the table.
  if (seen.empty()) fail(where, "got no op that is known; expected a trace of training steps");
  number(&seen);
  std::map<int32_t, std::vector<Lane>> steps;
  for (size_t i = 0; i < seen.size(); ++i) {
    std::vector<Lane>& lanes = steps[seen[i].step];
    lanes.resize(static_cast<size_t>(run->replicas));
    Lane& lane = lanes[static_cast<size_t>(seen[i].replica)];
    if (seen[i].name == optional) {
      lane.extra.push_back(i);
      continue;
    }
    lane.ops.push_back(i);
    lane.signature += Mixed()(key_of(seen[i]));
  }
  std::map<uint64_t, int64_t> times;
  const Lane* pattern = nullptr;
  for (const auto& [step, lanes] : steps) {
    for (const Lane& lane : lanes) {
      if (!lane.ops.empty()) {
        ++times[lane.signature];
      }
    }
  }
  for (const auto& [step, lanes] : steps) {
    for (const Lane& lane : lanes) {
      if (!lane.ops.empty() &&
          (pattern == nullptr || times[lane.signature] > times[pattern->signature])) {
        pattern = &lane;
      }
    }
  }
  std::vector<const std::vector<Lane>*> kept;
  size_t named = 0;
  for (const auto& [step, lanes] : steps) {
    const auto other = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) {
      return lane.signature != pattern->signature || lane.ops.size() != pattern->ops.size();
    });
    if (other == lanes.end()) {
      run->steps.push_back(step);
      kept.push_back(&lanes);
      continue;
    }
    ++run->dropped.steps;
    for (const Lane& lane : lanes) {
      run->dropped.events += static_cast<int64_t>(lane.ops.size() + lane.extra.size());
    }
    if (++named <= kNamedSteps) {
      run->dropped.notes.push_back(fmt::format(
          "step {} is not used: {}", step,
          difference(seen, *other, *pattern, *run, static_cast<int32_t>(other - lanes.begin()))));
    }
  }
  if (named > kNamedSteps) {
    run->dropped.notes.push_back(
        fmt::format("{} more are not used either", counted(int64_t(named - kNamedSteps), "step")));
  }
  if (kept.empty()) {
    fail(where, "got no step of which all ranks have the same ops: {}; try a trace of whole steps",
         run->dropped.notes.front());
  }
  // Rows in the order of worker and start of the first complete lane.
  std::vector<size_t> rows = kept.front()->front().ops;
  std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) {
    const Observed &x = seen[a], &y = seen[b];
    return std::tuple(x.worker, x.start, x.sequence) < std::tuple(y.worker, y.start, y.sequence);
  });
  std::unordered_map<Key, int32_t, Mixed> row_of;
  for (const size_t i : rows) {
    const Observed& op = seen[i];
    if (!row_of.emplace(key_of(op), static_cast<int32_t>(run->ops.size())).second) {
      fail(where, "got {} {} twice in step {} of worker {}; expected numbers that tell ops apart",
           run->names[static_cast<size_t>(op.name)], op.sequence, op.step, op.worker);
    }
    run->ops.push_back(
        {op.name, kNone, op.worker, op.stream, op.micro_batch, op.chunk, op.sequence, kNone});
  }
  for (const std::vector<Lane>* lanes : kept) {
    for (const Lane& lane : *lanes) {
      for (const size_t i : lane.extra) {
        const Observed& op = seen[i];
        if (row_of.emplace(key_of(op), static_cast<int32_t>(run->ops.size())).second) {
          run->ops.push_back(
              {op.name, kNone, op.worker, op.stream, op.micro_batch, op.chunk, op.sequence, kNone});
        }
      }
    }
  }
  run->waits_for.resize(run->ops.size());
  const size_t cells = run->ops.size() * static_cast<size_t>(run->lanes());
  run->start.assign(cells, 0);
  run->duration.assign(cells, 0);
  for (size_t step = 0; step < kept.size(); ++step) {
    double first = 1e300, last = -1e300;
    for (int32_t replica = 0; replica < run->replicas; ++replica) {
      const Lane& lane = (*kept[step])[static_cast<size_t>(replica)];
      for (const std::vector<size_t>* ops : {&lane.ops, &lane.extra}) {
        for (const size_t i : *ops) {
          const Observed& op = seen[i];
          const size_t cell =
              run->at(row_of.at(key_of(op)), static_cast<int32_t>(step) * run->replicas + replica);
          run->start[cell] = op.start;
          run->duration[cell] = op.duration;
          first = std::min(first, op.start);
          last = std::max(last, op.start + op.duration);
        }
      }
    }
    run->measured_step.push_back(last - first);
  }
}

void give_blocks(const std::vector<Traffic>& traffic, MeasuredRun* run) {
  std::vector<int32_t> kind_of_name(run->names.size(), kNone);
  for (Op& op : run->ops) {
    if (op.block != kNone) continue;
    int32_t& kind = kind_of_name[static_cast<size_t>(op.name)];
    if (kind == kNone) {
      kind = static_cast<int32_t>(run->kinds.size());
      run->kinds.push_back(
          {run->names[static_cast<size_t>(op.name)], traffic[static_cast<size_t>(op.name)]});
    }
    op.block = static_cast<int32_t>(run->blocks.size());
    run->blocks.push_back({kind, op.worker, op.micro_batch, op.chunk});
  }
}

int64_t settle_transfers(MeasuredRun* run) {
  constexpr double kClocks = 1e-2, kAtOnce = 1e-5;  // seconds
  const int32_t lanes = run->lanes();
  std::vector<double> last(static_cast<size_t>(lanes)), first(static_cast<size_t>(lanes));
  const auto starts = [&](const Group& group) {
    std::fill(last.begin(), last.end(), -1e300);
    std::fill(first.begin(), first.end(), 1e300);
    for (const int32_t op : group.ops) {
      for (int32_t lane = 0; lane < lanes; ++lane) {
        const auto at = static_cast<size_t>(lane);
        last[at] = std::max(last[at], run->start[run->at(op, lane)]);
        first[at] = std::min(first[at], run->start[run->at(op, lane)]);
      }
    }
    for (int32_t lane = 0; group.across_replicas && lane < lanes; lane += run->replicas) {
      std::fill_n(last.begin() + lane, run->replicas,
                  *std::max_element(last.begin() + lane, last.begin() + lane + run->replicas));
      std::fill_n(first.begin() + lane, run->replicas,
                  *std::min_element(first.begin() + lane, first.begin() + lane + run->replicas));
    }
  };
  int64_t groups = 0, at_once = 0, negative = 0;
  for (const Group& group : run->groups) {
    if (group.ops.size() < 2 && !(group.across_replicas && run->replicas > 1)) continue;
    starts(group);
    for (size_t lane = 0; lane < last.size(); ++lane) {
      ++groups;
      at_once += last[lane] - first[lane] < kAtOnce;
    }
  }
  const bool transfers = at_once * 10 >= groups * 9;
  for (const Group& group : run->groups) {
    starts(group);
    for (const int32_t op : group.ops) {
      if (group.eager && op == group.ops.front()) continue;
      for (int32_t lane = 0; lane < lanes; ++lane) {
        const size_t cell = run->at(op, lane);
        const double waited = last[static_cast<size_t>(lane)] - run->start[cell];
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
  return negative;
}

void add_wait(MeasuredRun* run, int32_t op, int32_t before) {
  std::vector<int32_t>& list = run->waits_for[static_cast<size_t>(op)];
  if (op != before && std::find(list.begin(), list.end(), before) == list.end()) {
    list.push_back(before);
  }
}

}  // namespace hocket::sim::whatif

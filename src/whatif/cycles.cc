// SPDX-License-Identifier: Apache-2.0
#include "whatif/cycles.h"

#include <algorithm>
#include <utility>

namespace hocket::whatif {
namespace {

/// Starts ops as a replay does, but for their times.
class CycleBreaker {
 public:
  explicit CycleBreaker(MeasuredRun* run)
      : run_(*run), missing_(run->ops.size()), behind_(run->ops.size()) {
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      missing_[op] = run_.waits_for[op].size();
      for (const OpId before : run_.waits_for[op]) {
        behind_[before].push_back(op);
      }
    }
  }

  int64_t break_all() {
    // Ops without dependencies start. Whenever none can start, the group that has waited longest is
    // split in two. Repeats until no group has waiting members.
    for (OpId op = 0; op < missing_.size(); ++op) {
      if (missing_[op] == 0) {
        ready_.push_back(op);
      }
    }
    int64_t cuts = 0;
    for (;;) {
      while (!ready_.empty()) {
        const OpId op = ready_.back();
        ready_.pop_back();
        start(op);
      }
      const auto stuck = std::find_if(order_.begin(), order_.end(),
                                      [&](GroupId group) { return !there_[group].empty(); });
      if (stuck == order_.end()) return cuts;
      cut(*stuck);
      ++cuts;
    }
  }

 private:
  /// Starts an op that waits only for the others of its group.
  void start(OpId op) {
    const GroupId group = run_.ops[op].group;
    if (group == kNone) return end(op);
    there_.resize(run_.groups.size());
    std::vector<OpId>& there = there_[group];
    if (there.empty()) {
      order_.push_back(group);
    }
    there.push_back(op);
    if (there.size() == run_.groups[group].ops.size()) {
      for (const OpId member : std::exchange(there, {})) {
        end(member);
      }
    }
  }

  void end(OpId op) {
    for (const OpId next : behind_[op]) {
      if (--missing_[next] == 0) {
        ready_.push_back(next);
      }
    }
  }

  /// Starts the members that are there, and makes a new group of the others.
  void cut(GroupId group) {
    const std::vector<OpId> now = std::exchange(there_[group], {});
    Group& cut = run_.groups[group];
    Group rest = cut;
    std::erase_if(rest.ops,
                  [&](OpId op) { return std::find(now.begin(), now.end(), op) != now.end(); });
    std::erase_if(cut.ops,
                  [&](OpId op) { return std::find(now.begin(), now.end(), op) == now.end(); });
    for (const OpId op : rest.ops) {
      run_.ops[op].group = run_.groups.size();
    }
    run_.groups.push_back(std::move(rest));
    for (const OpId op : now) {
      end(op);
    }
  }

  MeasuredRun& run_;
  std::vector<size_t> missing_;            ///< by op: dependencies left
  std::vector<std::vector<OpId>> behind_;  ///< by op: the ops that depend on it
  std::vector<OpId> ready_;
  std::vector<std::vector<OpId>> there_;  ///< by group: members that could start
  std::vector<GroupId> order_;            ///< by when their first member could
};

}  // namespace

int64_t break_cycles(MeasuredRun* run) { return CycleBreaker(run).break_all(); }

}  // namespace hocket::whatif

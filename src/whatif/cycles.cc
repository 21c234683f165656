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

/// Searches depth first, with a stack of its own: chains of dependencies are long.
class CycleFinder {
 public:
  explicit CycleFinder(const MeasuredRun& run) : run_(run), state_(run.ops.size(), State::fresh) {}

  std::vector<OpId> find() {
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      if (state_[op] == State::fresh && closes_from(op)) return cycle();
    }
    return {};
  }

 private:
  enum class State : char { fresh, open, done };
  struct Frame {
    OpId op;
    std::vector<OpId> before;  ///< not yet visited
  };

  /// Returns the ops that an op, and the others of its group, wait for.
  std::vector<OpId> waits_of(OpId op) const {
    std::vector<OpId> all = run_.waits_for[op];
    const GroupId group = run_.ops[op].group;
    if (group == kNone) return all;
    const Group& of = run_.groups[group];
    for (const OpId other : of.ops) {
      if (other == op || (of.eager && op == of.ops.front())) continue;
      const std::vector<OpId>& more = run_.waits_for[other];
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  bool closes_from(OpId first) {
    open(first);
    while (!path_.empty()) {
      Frame& top = path_.back();
      if (top.before.empty()) {
        state_[top.op] = State::done;
        path_.pop_back();
        continue;
      }
      const OpId next = top.before.back();
      top.before.pop_back();
      if (state_[next] == State::open) {
        closing_ = next;
        return true;
      }
      if (state_[next] == State::fresh) {
        open(next);
      }
    }
    return false;
  }
  void open(OpId op) {
    state_[op] = State::open;
    path_.push_back({op, waits_of(op)});
  }
  std::vector<OpId> cycle() const {
    std::vector<OpId> ops;
    for (auto at = path_.rbegin(); at != path_.rend(); ++at) {
      ops.push_back(at->op);
      if (at->op == closing_) break;
    }
    return {ops.rbegin(), ops.rend()};
  }

  const MeasuredRun& run_;
  std::vector<State> state_;
  std::vector<Frame> path_;
  OpId closing_ = kNone;
};

}  // namespace

std::vector<OpId> find_cycle(const MeasuredRun& run) { return CycleFinder(run).find(); }

int64_t break_cycles(MeasuredRun* run) { return CycleBreaker(run).break_all(); }

}  // namespace hocket::whatif

// SPDX-License-Identifier: Apache-2.0
#include "whatif/circles.h"

#include <algorithm>
#include <utility>

namespace hocket::whatif {
namespace {

/// Starts ops as a replay does, but for their times.
class Circles {
 public:
  explicit Circles(MeasuredRun* run)
      : run_(*run), missing_(run->ops.size()), behind_(run->ops.size()) {
    for (size_t op = 0; op < run_.ops.size(); ++op) {
      missing_[op] = run_.waits_for[op].size();
      for (const int32_t before : run_.waits_for[op]) {
        behind_[static_cast<size_t>(before)].push_back(static_cast<int32_t>(op));
      }
    }
  }

  int64_t break_all() {
    // Ops without dependencies start. Whenever none can start, the group that has waited longest is
    // split in two. Repeats until no group has waiting members.
    for (size_t op = 0; op < missing_.size(); ++op) {
      if (missing_[op] == 0) {
        ready_.push_back(static_cast<int32_t>(op));
      }
    }
    int64_t cuts = 0;
    for (;;) {
      while (!ready_.empty()) {
        const int32_t op = ready_.back();
        ready_.pop_back();
        start(op);
      }
      const auto stuck = std::find_if(order_.begin(), order_.end(), [&](int32_t group) {
        return !there_[static_cast<size_t>(group)].empty();
      });
      if (stuck == order_.end()) return cuts;
      cut(*stuck);
      ++cuts;
    }
  }

 private:
  /// An op that has nothing more to wait for but the others of its group.
  void start(int32_t op) {
    const int32_t group = run_.ops[static_cast<size_t>(op)].group;
    if (group == kNone) return end(op);
    there_.resize(run_.groups.size());
    std::vector<int32_t>& there = there_[static_cast<size_t>(group)];
    if (there.empty()) {
      order_.push_back(group);
    }
    there.push_back(op);
    if (there.size() == run_.groups[static_cast<size_t>(group)].ops.size()) {
      for (const int32_t member : std::exchange(there, {})) {
        end(member);
      }
    }
  }

  void end(int32_t op) {
    for (const int32_t next : behind_[static_cast<size_t>(op)]) {
      if (--missing_[static_cast<size_t>(next)] == 0) {
        ready_.push_back(next);
      }
    }
  }

  /// Members that are there start now; the others are a new group.
  void cut(int32_t group) {
    const std::vector<int32_t> now = std::exchange(there_[static_cast<size_t>(group)], {});
    Group& cut = run_.groups[static_cast<size_t>(group)];
    Group rest = cut;
    std::erase_if(rest.ops,
                  [&](int32_t op) { return std::find(now.begin(), now.end(), op) != now.end(); });
    std::erase_if(cut.ops,
                  [&](int32_t op) { return std::find(now.begin(), now.end(), op) == now.end(); });
    for (const int32_t op : rest.ops) {
      run_.ops[static_cast<size_t>(op)].group = static_cast<int32_t>(run_.groups.size());
    }
    run_.groups.push_back(std::move(rest));
    for (const int32_t op : now) {
      end(op);
    }
  }

  MeasuredRun& run_;
  std::vector<size_t> missing_;               ///< by op: dependencies left
  std::vector<std::vector<int32_t>> behind_;  ///< by op: the ops that depend on it
  std::vector<int32_t> ready_;
  std::vector<std::vector<int32_t>> there_;  ///< by group: members that could start
  std::vector<int32_t> order_;               ///< of groups, by when their first member could
};

}  // namespace

int64_t break_circles(MeasuredRun* run) { return Circles(run).break_all(); }

}  // namespace hocket::whatif

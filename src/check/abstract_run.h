// SPDX-License-Identifier: Apache-2.0
// Runs the lanes of all classes without their data, one representative rank per class: every lane
// takes its tasks in order, and a task waits for what it needs. Tells who comes when, whether all
// lanes get to their end, and if not, who waits for whom.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// How tasks of different ranks belong together. Tasks are addressed by their global index.
struct Matching {
  /// A collective over several classes: one task of each. Where the ranks of a class meet different
  /// classes (those of some coordinates one, those of others another), all of these are in it: then
  /// what the ranks of the class wait for, its representative waits for.
  struct Meeting {
    std::vector<int32_t> tasks;
    /// The tasks that meet in each sort of instance of the group.
    std::vector<std::vector<int32_t>> instances;
    bool complete = true;  ///< false: some member lacks its task, or brings another one (reported)
  };
  /// By task: the sends of a recv and back, one for every class that a peer may be in. Empty: none
  /// (reported).
  std::span<const int32_t> partners(int32_t task) const {
    if (partner[task] >= 0) return {&partner[task], 1};
    const auto found = partner[task] == kSeveral ? several.find(task) : several.end();
    return found == several.end() ? std::span<const int32_t>() : found->second;
  }
  static constexpr int32_t kSeveral = -2;
  std::vector<int32_t> partner;  ///< by task: the only one, kSeveral, -1
  std::unordered_map<int32_t, std::vector<int32_t>> several;
  std::vector<int32_t> meeting;  ///< by task: index of meetings, -1
  std::vector<Meeting> meetings;
};

/// What a send does: complete alone, its message being kept for the receiver (local ranks), or wait
/// for its receiver, so that both ends finish together (Gloo, NCCL).
enum class Sends : uint8_t { alone, wait };

class AbstractRun {
 public:
  AbstractRun(const Context& ctx, const Matching& matching, Sends sends);

  /// Runs all lanes. `visit(tasks, meeting)` is told of every task once, in an order that respects
  /// lanes, dependencies, messages and meetings; tasks that end together come in one call, and
  /// `meeting` is the collective over several classes that they are, or null. True if all lanes
  /// came to their end.
  template <typename Visit>
  bool run(Visit&& visit);

  /// After a run that got stuck: the tasks of a cycle of waits, each followed by the one it waits
  /// for, and the cycle in words. Empty if the lanes are stuck for want of a partner only.
  struct Cycle {
    std::vector<TaskRef> tasks;
    std::string text;
  };
  std::vector<Cycle> cycles() const;

 private:
  struct Wait {
    int32_t target = -1;  ///< global task waited for
    const char* why = "";
  };
  /// Tries the head of a lane: fills `ended_` with the tasks that end now, or notes for what the
  /// lane waits and leaves it empty. The collective over several classes that they are, or null.
  const Matching::Meeting* advance(int32_t lane);
  /// True if the lane of the task waits at it, with all else ready.
  bool is_there(int32_t task) const;
  void end(int32_t task);
  void end_message(int32_t task);
  /// Lane of class `cls` whose next task comes first in issue order among those that may go on, -1.
  int32_t next_lane(size_t cls);
  int32_t lane_index(int32_t task) const;
  int32_t head_task(int32_t lane) const;  ///< -1 at the end of the lane
  bool together(int32_t task) const;      ///< a message end that waits for the other end
  Wait waits_for(int32_t task) const;
  void wake(int32_t lane);

  const Context& ctx_;
  const Matching& matching_;
  const Sends sends_;
  std::vector<uint8_t> done_;          ///< by task
  std::vector<int32_t> head_;          ///< by lane: tasks of it that are done
  std::vector<uint8_t> arrived_;       ///< by lane: its head waits for others with all else ready
  std::vector<int32_t> first_waiter_;  ///< by task: list of the lanes that wait for it
  std::vector<int32_t> next_waiter_;   ///< by lane
  std::vector<uint32_t> ready_;        ///< by class: bit per lane that may go on
  std::vector<int32_t> ended_;
  size_t finished_ = 0;
};

template <typename Visit>
bool AbstractRun::run(Visit&& visit) {
  for (bool any = true; any;) {
    any = false;
    for (size_t c = 0; c < ready_.size(); ++c) {
      for (int32_t lane = next_lane(c); lane >= 0; lane = next_lane(c)) {
        const Matching::Meeting* const meeting = advance(lane);
        if (ended_.empty()) continue;
        any = true;
        visit(std::span<const int32_t>(ended_), meeting);
      }
    }
  }
  return finished_ == done_.size();
}

}  // namespace hocket::check

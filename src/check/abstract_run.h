// SPDX-License-Identifier: Apache-2.0
// Abstract run of the lanes of all classes, without data, one representative rank per class. Every
// lane runs its tasks in order, and a task waits for its dependencies and partners. Yields an order
// of all tasks, or the cycles of waits if lanes get stuck.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// Pairing of tasks of different ranks, by global index.
struct Matching {
  /// Matched collective over several classes: one task of each. If ranks of one class meet
  /// different classes, depending on their coordinates, the match has them all. So the
  /// representative waits for everything that any rank of its class waits for.
  struct CollectiveMatch {
    std::vector<int32_t> tasks;
    /// The tasks in each sort of instance of the group.
    std::vector<std::vector<int32_t>> instances;
    bool complete = true;  ///< false, and reported: a member lacks its task, or has another one
  };
  /// Returns the sends of a recv, or the receives of a send: one per class that a peer may be in.
  /// Empty, and reported: there is none.
  std::span<const int32_t> partners(int32_t task) const {
    if (partner[task] >= 0) return {&partner[task], 1};
    const auto found = partner[task] == kSeveral ? several.find(task) : several.end();
    return found == several.end() ? std::span<const int32_t>() : found->second;
  }
  static constexpr int32_t kSeveral = -2;
  std::vector<int32_t> partner;  ///< by task: its only partner, kSeveral, -1
  std::unordered_map<int32_t, std::vector<int32_t>> several;
  std::vector<int32_t> collective;  ///< by task: index of collectives, -1
  std::vector<CollectiveMatch> collectives;
};

/// Completion of sends. `eager`: the message is buffered for the receiver (local ranks).
/// `rendezvous`: the send waits for its receiver, and both ends finish together (rendezvous, as in
/// Gloo and NCCL).
enum class SendMode : uint8_t { eager, rendezvous };

class AbstractRun {
 public:
  AbstractRun(const Context& ctx, const Matching& matching, SendMode sends);

  /// Runs all lanes. Calls `visit(tasks, matched)` once per task, in an order that respects lanes,
  /// dependencies, messages and collectives. Tasks that end together come in one call; `matched` is
  /// their collective over several classes, or null. Returns true if all lanes reached their end.
  template <typename Visit>
  bool run(Visit&& visit);

  /// A cycle of waits: its tasks, each followed by the task that it waits for, and a text.
  struct Cycle {
    std::vector<TaskRef> tasks;
    std::string text;
  };
  /// Requires: run() got stuck. Empty if lanes are stuck only because partners are missing.
  std::vector<Cycle> cycles() const;

 private:
  struct Wait {
    int32_t target = -1;  ///< global task waited for
    const char* why = "";
  };
  /// Tries to run the head of a lane. Fills `ended_` with the tasks that end now, or registers the
  /// lane as a waiter. Returns the collective over several classes that ended, or null.
  const Matching::CollectiveMatch* advance(int32_t lane);
  /// Returns whether the lane of the task waits at it for partners only.
  bool has_arrived(int32_t task) const;
  void end(int32_t task);
  void end_message(int32_t task);
  /// Returns the ready lane of a class with the earliest next task in issue order; -1 if none.
  int32_t next_lane(size_t cls);
  int32_t lane_index(int32_t task) const;
  int32_t head_task(int32_t lane) const;   ///< -1 at the end of the lane
  bool is_rendezvous(int32_t task) const;  ///< true for a message end that waits for its other end
  Wait waits_for(int32_t task) const;
  void wake(int32_t lane);

  const Context& ctx_;
  const Matching& matching_;
  const SendMode sends_;
  std::vector<uint8_t> done_;          ///< by task
  std::vector<int32_t> head_;          ///< by lane: number of its tasks that are done
  std::vector<uint8_t> arrived_;       ///< by lane: its head waits for partners only
  std::vector<int32_t> first_waiter_;  ///< by task: linked list of the lanes that wait for it
  std::vector<int32_t> next_waiter_;   ///< by lane
  std::vector<uint32_t> ready_;        ///< by class: a bit per lane that may proceed
  std::vector<int32_t> ended_;
  size_t finished_ = 0;
};

template <typename Visit>
bool AbstractRun::run(Visit&& visit) {
  for (bool any = true; any;) {
    any = false;
    for (size_t c = 0; c < ready_.size(); ++c) {
      for (int32_t lane = next_lane(c); lane >= 0; lane = next_lane(c)) {
        const Matching::CollectiveMatch* const matched = advance(lane);
        if (ended_.empty()) continue;
        any = true;
        visit(std::span<const int32_t>(ended_), matched);
      }
    }
  }
  return finished_ == done_.size();
}

}  // namespace hocket::check

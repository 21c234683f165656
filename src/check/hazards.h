// SPDX-License-Identifier: Apache-2.0
// Races, reads of what was never written or was overwritten, and arena overlaps, under
// happens-before, for buffers and views alike, which conflict if they have memory in common: order
// inside a lane, and dependencies. The caller visits the tasks in any order that respects both; a
// vector clock per task says what is known to be finished before it starts.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// By lane: how many of its tasks are known to be finished.
using Clock = std::array<int32_t, program::kNumLanes>;

class Hazards {
 public:
  explicit Hazards(Context& ctx);

  /// Checks one task against everything visited so far. Buffers whose content can't be relied upon
  /// are added to `*lost`.
  void visit(ClassId cls, TaskId task, int32_t global, const Clock& before,
             std::vector<BufferId>* lost);
  /// Global task that wrote the buffer last, < 0 if none did. With `reader`: before that task,
  /// which may itself have written it in place.
  int32_t writer(ClassId cls, BufferId buffer, int32_t reader = -1) const;

 private:
  /// The task that is visited, and what is known to be finished before it starts.
  struct Visit {
    ClassId cls;
    TaskId task;
    int32_t global;
    const Clock& before;
  };
  struct Range {
    int64_t end;
    int32_t owner;  ///< buffer, or -1 - global task for a workspace
  };
  enum class Memory : uint8_t {
    untaken,
    held,  ///< is its own
    lost,  ///< was, and what it held is no more
  };
  struct ClassState {
    std::vector<Clock> access;  ///< by buffer and lane: 1 + position of the last access
    std::vector<Clock> used;    ///< the same of a base with views: of any of them
    /// Likewise: of whoever had its addresses before. Parts may be written that wait for no other.
    std::vector<Clock> former;
    std::vector<int32_t> writer, prior;  ///< global task: the last, and the one before
    std::vector<Memory> memory;          ///< of the buffer: its range of the arena
    /// By space, disjoint ranges by their begin: who was there last.
    std::array<std::map<int64_t, Range>, program::kNumSpaces> arena;
  };
  /// False, and reported, if what the buffer holds can't be relied upon.
  bool check_read(const Visit& at, BufferId buffer);
  /// False, and reported, if a part is written of a buffer that has lost its memory: the rest of it
  /// would seem to be there again.
  bool check_rest(const Visit& at, BufferId buffer);
  /// That whoever wrote the buffer, or a part of its memory, is known to be finished.
  void check_writer(const Visit& at, BufferId writer_of, BufferId buffer);
  /// Every access so far must be known to be finished, to whatever has memory in common.
  void check_write(const Visit& at, BufferId buffer);
  void check_accesses(const Visit& at, const Clock& seen, BufferId buffer);
  /// A part of a base whose addresses others have had before: they must be finished.
  void check_former(const Visit& at, BufferId buffer);
  bool was_written(const ClassState& state, ClassId cls, BufferId buffer) const;
  /// Clock of all accesses to a base and its views.
  Clock& uses_of(ClassState& state, BufferId root) const {
    return state.used.empty() ? state.access[root] : state.used[root];
  }
  /// Notes the accesses of the task for those that come after it.
  void record(const Visit& at, const Task& task);
  void report_unwritten(const Visit& at, BufferId buffer);
  void report_overwritten(const Visit& at, BufferId buffer, const char* does);
  /// Gives addresses [begin, end) to `owner`; whoever held any of them must be finished with it.
  void take(const Visit& at, program::Space space, int64_t begin, int64_t end, int32_t owner);
  /// `owner` loses its addresses to `by`, in favour of the visited task.
  void evict(const Visit& at, int32_t owner, int32_t by);
  /// Reports that nothing orders two tasks (once per pair).
  void race(int32_t earlier, int32_t later, const std::string& what, const char* fix);
  /// Global task of the last access that the clock entry `seen` of a lane stands for.
  int32_t last_in_lane(ClassId cls, size_t lane, int32_t seen) const;
  std::string owner_name(ClassId cls, int32_t owner) const;

  Context& ctx_;
  std::vector<ClassState> state_;
  /// Pairs of global tasks that race, and (-2 - buffer, global task) of reads that were refused.
  std::set<std::pair<int32_t, int32_t>> reported_;
};

}  // namespace hocket::check

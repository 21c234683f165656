// SPDX-License-Identifier: Apache-2.0
// Races, reads of unwritten or overwritten buffers, and overlaps in the arena. Happens-before is
// the order inside a lane plus dependencies; a vector clock per task says which tasks have finished
// before it starts. The caller visits tasks in any order that respects both. Buffers and views
// conflict if they share memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// Vector clock. By lane: the number of its tasks that are known to be finished.
using Clock = std::array<int32_t, program::kNumLanes>;

class Hazards {
 public:
  explicit Hazards(Context& ctx);

  /// Checks a task against all tasks visited so far. Adds buffers with unreliable content to
  /// `*lost`.
  void visit(ClassId cls, TaskId task, int32_t global, const Clock& before,
             std::vector<BufferId>* lost);
  /// Returns the global task that wrote the buffer last; < 0 if none. `reader`: returns the last
  /// writer before this global task, which may itself have written the buffer in place.
  int32_t writer(ClassId cls, BufferId buffer, int32_t reader = -1) const;

 private:
  /// The visited task, and the clock of tasks that finish before it starts.
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
    missing_text,
    held,
    lost,  ///< taken over by another owner
  };
  struct ClassState {
    std::vector<Clock> access;  ///< by buffer and lane: 1 + position of the last access
    std::vector<Clock> used;    ///< by base and lane: the same, for the base and all its views
    /// By base and lane: the same, for former owners of its addresses. Every first write of a part
    /// must wait for these.
    std::vector<Clock> former;
    std::vector<int32_t> writer, prior;  ///< by buffer: last writer (global task), and previous one
    std::vector<Memory> memory;          ///< by buffer: state of its range of the arena
    /// By space: disjoint ranges by their begin, each with its last owner.
    std::array<std::map<int64_t, Range>, program::kNumSpaces> arena;
  };
  /// Returns false, and reports, if the content of the buffer is unreliable.
  bool check_read(const Visit& at, BufferId buffer);
  /// Returns false, and reports, if a part is written of a buffer that has lost its memory: the
  /// rest of the buffer would seem valid again.
  bool check_rest(const Visit& at, BufferId buffer);
  /// Reports a race unless the last writer of `writer_of` has finished.
  void check_writer(const Visit& at, BufferId writer_of, BufferId buffer);
  /// Reports a race unless all accesses so far to shared memory have finished.
  void check_write(const Visit& at, BufferId buffer);
  void check_accesses(const Visit& at, const Clock& seen, BufferId buffer);
  /// Reports a race unless former owners of the base's addresses have finished.
  void check_former(const Visit& at, BufferId buffer);
  bool was_written(const ClassState& state, ClassId cls, BufferId buffer) const;
  /// Returns the clock of all accesses to a base and its views.
  Clock& uses_of(ClassState& state, BufferId root) const {
    return state.used.empty() ? state.access[root] : state.used[root];
  }
  /// Records the accesses of the task.
  void record(const Visit& at, const Task& task);
  void report_unwritten(const Visit& at, BufferId buffer);
  void report_overwritten(const Visit& at, BufferId buffer, const char* does);
  /// Gives addresses [begin, end) to `owner`. Former owners must have finished with them.
  void take(const Visit& at, program::Space space, int64_t begin, int64_t end, int32_t owner);
  /// Takes the addresses of `owner` away, in favour of `by`, for the visited task.
  void evict(const Visit& at, int32_t owner, int32_t by);
  /// Reports that nothing orders two tasks, once per pair.
  void race(int32_t earlier, int32_t later, const std::string& what, const char* fix);
  /// Returns the global task of the access that clock entry `seen` of a lane stands for.
  int32_t last_in_lane(ClassId cls, size_t lane, int32_t seen) const;
  std::string owner_name(ClassId cls, int32_t owner) const;

  Context& ctx_;
  std::vector<ClassState> state_;
  /// Reported races as pairs of global tasks; refused reads as (-2 - buffer, global task).
  std::set<std::pair<int32_t, int32_t>> reported_;
};

}  // namespace hocket::check

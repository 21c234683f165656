// SPDX-License-Identifier: Apache-2.0
// Races, reads of what was never written or was overwritten, and arena overlaps, under
// happens-before: order inside a lane, and dependencies. The caller visits the tasks in any order
// that respects both; a vector clock per task says what is known to be finished before it starts.
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
  int32_t writer(ClassId cls, BufferId buffer, int32_t reader = -1) const {
    const ClassState& state = state_[cls];
    const int32_t w = state.writer[buffer];
    return w >= 0 && w == reader ? state.prior[buffer] : w;
  }

 private:
  struct Range {
    int64_t end;
    int32_t owner;  ///< buffer, or -1 - global task for a workspace
  };
  struct ClassState {
    std::vector<Clock> access;           ///< by buffer and lane: 1 + position of the last access
    std::vector<int32_t> writer, prior;  ///< global task: the last, and the one before
    std::vector<uint8_t> held;           ///< the buffer's range of the arena is its own
    std::map<int64_t, Range> arena;
  };
  void take(ClassId cls, int64_t begin, int64_t end, int32_t owner, int32_t global,
            const Clock& before);
  void evict(ClassId cls, int32_t owner, int32_t by, int32_t global, const Clock& before);
  void race(int32_t first, int32_t second, const std::string& what, const char* fix);
  std::string owner_name(ClassId cls, int32_t owner) const;

  Context& ctx_;
  std::vector<ClassState> state_;
  std::set<std::pair<int32_t, int32_t>> reported_;
};

}  // namespace hocket::check

// SPDX-License-Identifier: Apache-2.0
// Analysis after a replay: the critical path (walked back from the task that ended last, always to
// the event that let a task start or a transfer begin) and the report of a deadlock.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine.h"
#include "sim/tables.h"

namespace hocket::sim {

/// A task of a replayed rank.
struct TaskAt {
  RankIndex index = program::kNone;
  TaskId task = program::kNone;
};

/// Returns the critical path, last step first. `cause`: per (rank, task), the event that let it
/// start; `last_arriver`: per collective state, the member that arrived last.
std::vector<PathStep> critical_path(const Tables& tables, const Replay& replay,
                                    const std::vector<TaskAt>& cause,
                                    const std::vector<RankIndex>& last_arriver);

/// Throws Error naming, per lane, the first task that did not end (up to 12) and its unmet wait.
[[noreturn]] void throw_deadlock(const Tables& tables, const std::vector<int64_t>& base,
                                 const std::vector<int32_t>& waits,
                                 const std::vector<int32_t>& arrived,
                                 const std::vector<bool>& ended);

}  // namespace hocket::sim

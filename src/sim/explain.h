// SPDX-License-Identifier: Apache-2.0
// What can be said after a replay: the critical path (walked back from the task that ended last,
// always to what let a task start or a transfer begin), and why a replay got stuck.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine.h"
#include "sim/tables.h"

namespace hocket::sim {

/// A task of a replayed rank.
struct TaskAt {
  int32_t index = program::kNone;
  TaskId task = program::kNone;
};

/// `cause`: per (rank, task) what let it start; `last_arriver`: per collective state, the member
/// that came last.
std::vector<PathStep> critical_path(const Tables& tables, const Replay& replay,
                                    const std::vector<TaskAt>& cause,
                                    const std::vector<int32_t>& last_arriver);

/// Names the first task that did not end in every lane (up to 12) and what it waits for.
[[noreturn]] void throw_deadlock(const Tables& tables, const std::vector<int64_t>& base,
                                 const std::vector<int32_t>& waits,
                                 const std::vector<int32_t>& arrived,
                                 const std::vector<bool>& ended);

}  // namespace hocket::sim

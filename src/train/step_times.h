// SPDX-License-Identifier: Apache-2.0
// When the tasks of all ranks ran in a step: kept as steps go by, brought together, made a trace.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/session.h"
#include "trace/trace.h"

namespace hocket::train {

struct StepTimes {
  int64_t step = 0;
  std::vector<std::vector<runtime::TaskTime>> ranks;  ///< by task; empty of a rank that is not here

  /// From the first start to the last end.
  int64_t duration_ns() const;
};

/// Of the session's last step, which is the training's `step`.
StepTimes times_of(const engine::Session& session, int64_t step);

/// All processes call it with the same steps: each then has those of all ranks, on the clock of the
/// first process.
void gather(comm::Processes& processes, std::vector<StepTimes>* steps);

/// The trace of gathered steps, on one clock that begins with the first task.
trace::Trace to_trace(const program::Program& program, const std::string& title,
                      std::span<const StepTimes> steps);

}  // namespace hocket::train

// SPDX-License-Identifier: Apache-2.0
// Start and end of all ranks' tasks in a step: recorded, gathered, and made into a trace.
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

  /// Time from the first start to the last end.
  int64_t duration_ns() const;
};

/// Returns the times of the session's last step, number `step` of the training.
StepTimes times_of(const engine::Session& session, int64_t step);

/// Gathers the times of all ranks on the clock of the first process. All processes call it with the
/// same steps.
void gather(comm::Processes& processes, std::vector<StepTimes>* steps);

/// The trace of gathered steps, on one clock that begins with the first task.
trace::Trace to_trace(const program::Program& program, const std::string& title,
                      std::span<const StepTimes> steps);

}  // namespace hocket::train

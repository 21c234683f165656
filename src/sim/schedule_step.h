// SPDX-License-Identifier: Apache-2.0
// Length of a pipeline schedule's step without a replay: the longest path through its cells and
// messages. For a search that needs thousands of them; simulate_schedule() gives times of cells.
#pragma once

#include <functional>
#include <span>

#include "parallel/schedules/schedule.h"

namespace hocket::sim {

/// Times that differ between ranks, in any unit.
struct CellTimes {
  /// Time of a cell, one action or an overlapped pair, on a rank.
  std::function<double(int rank, std::span<const parallel::Action> cell)> cell;
  std::function<double(int from, int to)> message;  ///< between two ranks
};

/// Returns the end of the last cell. A rank runs its cells in order, and sends one message after
/// the other, which does not wait for the receiver. Requires: the schedule is valid
/// (parallel::validate).
double schedule_step(const parallel::Schedule& schedule, int stages, int micro_batches,
                     const CellTimes& times);

}  // namespace hocket::sim

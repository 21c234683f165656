// SPDX-License-Identifier: Apache-2.0
// Simulation of a pipeline schedule alone: its bubbles and live micro-batches, with a few costs in
// place of a model. The schedule becomes a program of one task per cell, which is replayed
// (sim/engine.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/schedules/schedule.h"

namespace hocket::sim {

/// Times of one micro-batch of one stage, in any unit.
struct ScheduleCosts {
  double forward = 1;
  double inputs = 1;         ///< I: gradients of inputs
  double weights = 1;        ///< W: gradients of weights
  double backward = -1;      ///< B: the whole backward; below 0: I + W
  double overlapped = -1;    ///< FB: an overlapped pair; below 0: the sum of both
  double communication = 0;  ///< per message to another rank
};

/// Parses "F=1,I=1,W=1,B=2,FB=2.5,comm=0.1": any of them, in any order. Throws Error.
ScheduleCosts parse_costs(const std::string& text);

/// A cell and the time when it ran.
struct ScheduleCell {
  std::vector<parallel::Action> actions;  ///< one, or the two of an overlapped pair
  double begin = 0, end = 0;
};

struct ScheduleRank {
  std::vector<ScheduleCell> cells;
  double busy = 0;
  /// Peak number of micro-batches between the end of their forward and of their backward, weights
  /// included. Summed over the rank's stages, in units of the stages of a pipeline with one stage
  /// per rank.
  double peak_live = 0;
};

struct ScheduleReport {
  std::string name;
  int stages = 0;
  int micro_batches = 0;
  ScheduleCosts costs;
  double step = 0;
  double bubble = 0;  ///< share of the ranks' time in which they do not compute
  std::vector<ScheduleRank> ranks;
};

/// Replays a schedule. Requires: it is valid (parallel::validate). Throws Error if it takes too
/// long to count.
ScheduleReport simulate_schedule(const parallel::Schedule& schedule, int stages, int micro_batches,
                                 const ScheduleCosts& costs);

/// Returns the largest number of micro-batches alive on a rank with these actions, in the units of
/// ScheduleRank::peak_live.
double peak_live(const std::vector<parallel::Action>& row, int ranks, int stages);

/// Returns figures, then a line per rank with its timeline.
std::string to_text(const ScheduleReport& report);
std::string to_json(const ScheduleReport& report);
/// Returns the timeline as a picture.
std::string to_svg(const ScheduleReport& report);

}  // namespace hocket::sim

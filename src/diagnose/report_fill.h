// SPDX-License-Identifier: Apache-2.0
// Functions that fill parts of a report from a run's trace, its simulation and its program.
#pragma once

#include <cstdint>
#include <span>

#include "diagnose/report.h"
#include "program/program.h"
#include "trace/trace.h"

namespace hocket::diagnose {

/// Fills the time by kind of task (mean over the trace's steps and ranks) and the timeline of the
/// step with the median duration. Events without a step are ignored; a trace without events changes
/// nothing.
void fill_measured(ReportData& report, const trace::Trace& trace);

/// Fills the predicted timeline and the predicted time by kind. Call after fill_measured; kinds
/// that only the prediction has get their own row. `ranks_of_event[i]`: number of ranks that event
/// i stands for, if the simulation replayed one rank for several; empty: one each.
void fill_predicted(ReportData& report, const trace::Trace& trace,
                    std::span<const int32_t> ranks_of_event = {});

/// Returns one clause that locates the difference between the run and the prediction. It names the
/// kind of task with the largest share, and its traced steps. Or it says that the difference is not
/// in computation, or not in the traced steps. Call after fill_predicted. Empty if they differ by
/// less than `least` (0.05: 5 %), or if either is unknown.
std::string blame(const ReportData& report, double least = 0.05);

/// Fills the predicted timeline and time by kind into a report without a run.
void fill_simulated(ReportData& report, const trace::Trace& trace,
                    std::span<const int32_t> ranks_of_event);

/// Returns the memory plan of one rank class. Blocks live from the start of their first task to the
/// end of their last. Times are in seconds if `times` (a trace with one step of a rank of the
/// class) has all its tasks, else in tasks. Requires: the program has a memory plan.
MemoryPlan memory_plan_of(const program::Program& program, program::ClassId cls,
                          const trace::Trace* times = nullptr,
                          program::Kernels kernels = program::Kernels::on_copies);

}  // namespace hocket::diagnose

// SPDX-License-Identifier: Apache-2.0
// Fills parts of a report from what a run has at hand: its trace, the simulator's, its program.
#pragma once

#include <cstdint>
#include <span>

#include "diagnose/report.h"
#include "program/program.h"
#include "trace/trace.h"

namespace hocket::diagnose {

/// Time by kind of task (mean over the trace's steps and ranks) and the timeline of one step: the
/// one whose duration is the median. Events without a step are left out; a trace without events
/// changes nothing.
void fill_measured(ReportData& report, const trace::Trace& trace);

/// The predicted timeline and the predicted time by kind. Call after fill_measured; kinds that only
/// the prediction has get a row of their own. A simulation that replayed one rank per class counts
/// each with the number of ranks of its stage: `ranks_of_event[i]` per event, empty for one each.
void fill_predicted(ReportData& report, const trace::Trace& trace,
                    std::span<const int32_t> ranks_of_event = {});

/// Where the run's steps and the prediction part, in one clause: which kind of task takes most of
/// the difference, or that it is not in the tasks that compute, by the steps that were traced,
/// which it names; or that these do not show it, as they hardly differ, or the other way. Call
/// after fill_predicted. Empty where they differ by less than `least` (0.05: 5 %), or one of them
/// is not known.
std::string blame(const ReportData& report, double least = 0.05);

/// The predicted timeline and time by kind as those of a report that has no others.
void fill_simulated(ReportData& report, const trace::Trace& trace,
                    std::span<const int32_t> ranks_of_event);

/// The memory plan of one rank class. Blocks live from the start of their first task to the end of
/// their last; in seconds if `times` (a trace with one step of a rank of the class) has every task
/// of it, in tasks otherwise. Needs a planned program (offsets).
MemoryPlan memory_plan_of(const program::Program& program, program::ClassId cls,
                          const trace::Trace* times = nullptr,
                          program::Kernels kernels = program::Kernels::on_copies);

}  // namespace hocket::diagnose

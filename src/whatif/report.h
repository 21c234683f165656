// SPDX-License-Identifier: Apache-2.0
// Text, JSON and HTML forms of the findings of `hocket whatif`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "whatif/analysis.h"
#include "whatif/bottleneck.h"
#include "whatif/measured_run.h"
#include "whatif/scale.h"

namespace hocket::whatif {

/// A step with one scale, or with all of them.
struct ScaledStep {
  std::string text;  ///< the scale as given; "all of these" for all together
  double seconds = 0;
};

struct Findings {
  Analysis analysis;
  std::vector<ScaledStep> scaled;
  std::optional<Surface> surface;
  std::optional<Bottleneck> bottleneck;
};

/// Footnote for shares of the loss above 100 %, and for runs without a named cause.
inline constexpr const char* kAboveAllNote =
    "more than 100 % of the loss: the ideal, a mean or median, includes the slow "
    "ops; a step cured to the others' pace is faster than the ideal";
inline constexpr const char* kNotSeen =
    "not seen: pauses that hit the same transfer, or the same op of all workers that do the same, "
    "in "
    "every step: there is nothing to compare them with";

/// Ground of answers to --scale.
inline constexpr const char* kNoIntervalNote =
    "no interval is known: no scaled step was compared with a run; the answers hold if these ops "
    "change as given and no others do";
/// Greatest error of the gain of curing a cause, over 15 faults injected into runs in a box
/// (bench/results/2026-11-26-injected.md).
inline constexpr double kGainError = 0.06;

/// Returns "15.2 % of the time is lost; M_S 1.219, M_W 0.031".
std::string loss_text(const Analysis& found);
/// Returns the cause of the slowness, or the reason that none is named.
std::string cause_text(const MeasuredRun& run, const Analysis& found);
/// Returns the evidence of a cause, with why it is not confirmed.
std::string evidence_text(const CauseFound& cause);
/// Returns a sentence on devices that wait for their hosts; empty if they hardly do.
std::string host_text(const Analysis& found);
/// Returns whether to print a table of causes: the run straggles, or a cause is named.
bool shows_causes(const Analysis& found);
/// Returns "3 steps, 8 workers".
std::string size_text(const MeasuredRun& run);
/// Returns the greatest slowdown of the workers of [stage][replica]; 0 where there is none.
std::vector<std::vector<double>> worker_map(const MeasuredRun& run, const Analysis& found);
std::string to_text(const MeasuredRun& run, const Findings& findings);
/// Writes the keys T, T_ideal, S, S_step, S_stage, S_dp, M_S, M_W and more (docs/whatif.md);
/// seconds.
std::string to_json(const MeasuredRun& run, const Findings& findings);
/// Writes a page that needs nothing else: heat maps of workers and of stages by step, causes.
std::string to_html(const MeasuredRun& run, const Findings& findings);

}  // namespace hocket::whatif

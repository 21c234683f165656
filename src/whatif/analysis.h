// SPDX-License-Identifier: Apache-2.0
// Straggler analysis: the cost of stragglers, their location and their cause. Replays a run with
// some ops as measured and the others ideal. Definitions and causes follow "Understanding
// Stragglers in Large Model Training Using What-if Analysis" (2505.05713, sections 3 to 5;
// StragglerAnalysis). docs/whatif.md repeats them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "whatif/measured_run.h"
#include "whatif/replay.h"

namespace hocket::whatif {

/// Slowdown S from which a run counts as straggling (2505.05713, section 4). kMinNamedShare: share
/// of a step below which a loss is not worth a cause.
inline constexpr double kStragglingSlowdown = 1.1, kMinNamedShare = 0.01;
/// Share of the measured step: a replay that is off by more cannot explain why the step is slow.
inline constexpr double kMaxReplayError = 0.1;
/// Share of the loss that a named cause must explain.
inline constexpr double kMainCauseShare = 0.5;

/// Slowdown caused by the part left as measured while all else is ideal: over the mean step, and
/// per step.
struct Slowdown {
  double mean = 1;
  std::vector<double> by_step;
};

/// Reason that a run is slower than it would be were all ops of a kind alike.
enum class Cause { slow_worker, last_stage, slow_stage, uneven_sequences, pauses, slow_link };

struct CauseFound {
  Cause cause;
  std::string where;     ///< "dp 3 pp 2"; empty if it is everywhere
  double fixed = 0;      ///< seconds of a step without it
  double gain = 0;       ///< T / fixed; of pauses between ops T with these
  double explains = 0;   ///< (T - fixed) / (T - T_ideal), likewise; see Analysis::loses()
  bool named = false;    ///< the run's cause: explains half of the loss, or passes its own test
  std::string evidence;  ///< one sentence
  std::string doubt;     ///< why the trace's own steps do not confirm it; empty: they do
};

struct Analysis {
  double measured = 0;  ///< seconds of a step as the trace has it, mean
  double T = 0;         ///< of the replay with measured durations
  double T_ideal = 0;   ///< of the replay with ideal ones
  double S = 1;         ///< T / T_ideal
  std::vector<double> step_measured, step_T, step_ideal, S_step;
  std::vector<Slowdown> S_stage, S_dp, S_kind;
  std::vector<double>
      S_worker;  ///< by worker, as MeasuredRun::workers: the less of its stage's and replica's
  /// Share of T - T_ideal that goes with the last stage; with the slowest 3 % of workers. No number
  /// where nothing is lost, and the first where the last stage is not in the trace.
  double M_S = 0, M_W = 0;
  double off = 0;  ///< how much longer the replay is than the measured step, over that; with pauses
                   ///< between ops. 0 where it is not known
  double T_without_last_stage = 0, T_without_slowest = 0;
  double T_without_host = 0;       ///< with hosts that take no time; 0: the trace has none
  std::vector<WorkerId> slowest;   ///< those 3 %, at least one
  double correlation = 0;          ///< Pearson's, of a micro-batch's forward and backward time
  std::vector<CauseFound> causes;  ///< the named cause first, then by gain

  /// Returns whether devices wait for their hosts, to an extent that would make a run straggle.
  bool is_behind() const { return T_without_host > 0 && T >= kStragglingSlowdown * T_without_host; }
  bool is_far_off() const { return off > kMaxReplayError || off < -kMaxReplayError; }
  /// Returns whether the loss is large enough for shares of it to mean something.
  bool loses() const { return T - T_ideal >= kMinNamedShare * T; }
};

/// Returns the durations of ops if all of a kind were alike, as MeasuredRun::duration. Compute
/// takes the mean, communication the median, over steps, micro-batches, workers and replicas.
std::vector<double> ideal_durations(const MeasuredRun& run);

Analysis analyze(const MeasuredRun& run);

}  // namespace hocket::whatif

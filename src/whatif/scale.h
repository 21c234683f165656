// SPDX-License-Identifier: Apache-2.0
// Scaled replays: a measured run replayed with some of its durations divided, as if an op were k
// times faster, a link k times wider, or a collective compressed r times.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "whatif/measured_run.h"
#include "whatif/replay.h"

namespace hocket::whatif {

/// Divides the durations of matching ops by `factor`. A transfer's time is taken as bytes over
/// bandwidth. A link k times wider and a payload compressed k times by a codec that takes no time
/// are thus the same.
struct Scale {
  std::string text;  ///< as given
  /// A kind or op by name, a name's beginning and '*', or compute, communication, messages,
  /// collectives, gradients, all.
  std::string what;
  std::vector<std::pair<std::string, int64_t>> where;  ///< dp, pp, rank or step; all must match
  double factor = 1;
};

/// Parses "forward-compute=2" or "messages@pp=1,dp=0=10". Throws Error on another form, a factor
/// that is not above 0, or a scale that means nothing of `run`.
Scale parse_scale(const std::string& text, const MeasuredRun& run);

/// Returns the durations with all of `scales` applied, one after the other.
std::vector<double> scaled(const MeasuredRun& run, const std::vector<Scale>& scales);

/// A step by link bandwidth factor and by compression ratio of gradient all-reduces ("Is Network
/// the Bottleneck of Distributed Training?", 2006.10103). Gives seconds and the scaling factor f:
/// the step's time without communication over its time.
struct Surface {
  std::vector<double> bandwidths, ratios;
  std::vector<std::vector<double>> seconds, factor;  ///< [bandwidth][ratio]
  double alone = 0;                                  ///< seconds of a step without communication
};
Surface surface(const MeasuredRun& run, Replayer* replayer);

}  // namespace hocket::whatif

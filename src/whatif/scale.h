// SPDX-License-Identifier: Apache-2.0
// "What if this op were k times faster, this link k times wider, this collective compressed r
// times": a measured run replayed with some of its durations divided.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "whatif/measured_run.h"
#include "whatif/replay.h"

namespace hocket::whatif {

/// Durations of what it matches are divided by `factor`. A transfer's is taken to be bytes over
/// bandwidth: a link k times wider and a payload compressed k times without a codec's time are the
/// same to it.
struct Scale {
  std::string text;  ///< as given
  /// A kind or op by name, a name's beginning and '*', or compute, communication, messages,
  /// collectives, gradients, all.
  std::string what;
  std::vector<std::pair<std::string, int64_t>> where;  ///< dp, pp, rank or step, all of which hold
  double factor = 1;
};

/// "forward-compute=2", "messages@pp=1,dp=0=10". Error: no such form, a factor that is not above 0,
/// or nothing of `run` is meant.
Scale parse_scale(const std::string& text, const MeasuredRun& run);

/// Durations with all of `scales` applied, one after the other.
std::vector<double> scaled(const MeasuredRun& run, const std::vector<Scale>& scales);

/// A step by how many times wider all links are and how many times less the sums of gradients send
/// ("Is Network the Bottleneck of Distributed Training?", 2006.10103): seconds, and the scaling
/// factor f, the time of a step without any communication over that time.
struct Surface {
  std::vector<double> bandwidths, ratios;
  std::vector<std::vector<double>> seconds, factor;  ///< [bandwidth][ratio]
  double alone = 0;                                  ///< seconds of a step without communication
};
Surface surface(const MeasuredRun& run, Replayer* replayer);

}  // namespace hocket::whatif

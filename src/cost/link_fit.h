// SPDX-License-Identifier: Apache-2.0
// Fit of a cluster's link constants to measured times of collectives. docs/cluster-files.md
// describes the fitted constants and those that are kept.
#pragma once

#include <string>
#include <vector>

#include "cost/cluster.h"
#include "cost/comm_log.h"

namespace hocket::cost {

struct LinkFit {
  Cluster cluster;                    ///< the base with the fitted constants, each with its source
  std::vector<std::string> fitted;    ///< "links.intra", ...
  int64_t times = 0;                  ///< number of samples used, without those left out
  std::vector<std::string> left_out;  ///< samples, and the reason
  /// Warnings about links whose constants are far from the times that they were fitted to.
  std::vector<std::string> doubts;
};

/// Smallest size in bytes for which errors are reported: shorter transfers take the time of the
/// host's launches as much as that of links.
inline constexpr double kMinJudgedBytes = 1 << 20;

/// Fits the link classes that `samples` use; the others are as in `base`. `where` names the
/// measurements in the sources. Throws Error if no sample has a group of more than one rank.
LinkFit fit_links(const Cluster& base, const std::vector<CommSample>& samples,
                  const std::string& where);

/// Returns the seconds of a sample by a cluster's cost model.
double predicted_s(const Cluster& cluster, const CommSample& sample);

}  // namespace hocket::cost

// SPDX-License-Identifier: Apache-2.0
// Constants of a cluster's links from measured times of collectives. docs/cluster-files.md says what is
// fitted and what stays as it was.
#pragma once

#include <string>
#include <vector>

#include "cost/cluster.h"
#include "cost/comm_log.h"

namespace hocket::cost {

struct LinkFit {
  Cluster cluster;                  ///< the base with the fitted constants, each with its source
  std::vector<std::string> fitted;  ///< "links.intra", ...
  int64_t times = 0;                ///< to how many of the samples: without what was left out
  std::vector<std::string> told;    ///< what was left out and why
  /// Of links whose constants are far from the very times that they were fitted to.
  std::vector<std::string> doubts;
};

/// Sizes that errors are told of: what short transfers take is the host's launches as much as
/// links.
inline constexpr double kJudgedBytes = 1 << 20;

/// Fits the link classes that `samples` speak of; what they say nothing of is as in `base`. `where`
/// names the measurements in the sources. Error: no sample is of a group of more than one rank.
LinkFit fit_links(const Cluster& base, const std::vector<CommSample>& samples,
                  const std::string& where);

/// Seconds that a cluster's cost model gives a sample.
double predicted_s(const Cluster& cluster, const CommSample& sample);

}  // namespace hocket::cost

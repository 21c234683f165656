// SPDX-License-Identifier: Apache-2.0
// Constants of a cluster's links from measured times of collectives, and how well they predict
// times that they were not fitted to. docs/clusters.md says what is fitted and what stays as it
// was.
#pragma once

#include <string>
#include <vector>

#include "cost/cluster.h"
#include "cost/comm_log.h"

namespace hocket::cost {

/// How far predictions are from measurements of one group: |predicted / measured - 1|.
struct GroupError {
  std::string op;
  int32_t ranks = 0, nodes = 1;
  std::string
      how;  ///< what the constants were fitted to: "other groups", "other sizes", "the rest"
  int64_t sizes = 0;
  double mean = 0, worst = 0, worst_bytes = 0;
};

struct LinkFit {
  Cluster cluster;                  ///< the base with the fitted constants, each with its source
  std::vector<std::string> fitted;  ///< "links.intra", ...
  int64_t times = 0;                ///< to how many of the samples: without what was left out
  std::vector<std::string> told;    ///< what was left out and why
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

/// Errors of `cluster` on samples of at least kJudgedBytes (all, if there are none), by group.
std::vector<GroupError> errors_of(const Cluster& cluster, const std::vector<CommSample>& samples,
                                  const std::string& how);

/// Errors of fits that had not seen what they predict: each group by a fit to all other groups,
/// where these tell of its links, and every size by a fit to every other one.
std::vector<GroupError> held_out(const Cluster& base, const std::vector<CommSample>& samples);

}  // namespace hocket::cost

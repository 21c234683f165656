// SPDX-License-Identifier: Apache-2.0
// Errors of link constants (link_fit.h) on times that they were not fitted to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "cost/comm_log.h"

namespace hocket::cost {

/// Prediction error on the measurements of one group: |predicted / measured - 1|.
struct GroupError {
  std::string op;
  int32_t ranks = 0, nodes = 1;
  /// Samples that the constants were fitted to: "other groups", "other sizes", "the rest".
  std::string predicted_from;
  int64_t sizes = 0;
  double mean = 0, worst = 0, worst_bytes = 0;
  /// Whether the samples that were fitted say nothing of the links that this group uses: too few,
  /// or none through them. The error is then that of the given constants.
  bool links_given = false;
};

/// Returns the errors of `cluster` by group, on samples of at least kMinJudgedBytes (on all, if a
/// group has none).
std::vector<GroupError> errors_of(const Cluster& cluster, const std::vector<CommSample>& samples,
                                  const std::string& predicted_from);

/// Returns held-out errors of fits. Each group is predicted by a fit to all other groups, where
/// these use its links. Half of the sizes of each group are predicted by a fit to the other half.
std::vector<GroupError> held_out(const Cluster& base, const std::vector<CommSample>& samples);

}  // namespace hocket::cost

// SPDX-License-Identifier: Apache-2.0
// How well constants of links (link_fit.h) predict times that they were not fitted to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "cost/comm_log.h"

namespace hocket::cost {

/// How far predictions are from measurements of one group: |predicted / measured - 1|.
struct GroupError {
  std::string op;
  int32_t ranks = 0, nodes = 1;
  /// What the constants were fitted to: "other groups", "other sizes", "the rest".
  std::string how;
  int64_t sizes = 0;
  double mean = 0, worst = 0, worst_bytes = 0;
};

/// Errors of `cluster` on samples of at least kJudgedBytes (all, if there are none), by group.
std::vector<GroupError> errors_of(const Cluster& cluster, const std::vector<CommSample>& samples,
                                  const std::string& how);

/// Errors of fits that had not seen what they predict: each group by a fit to all other groups,
/// where these tell of its links, and every size by a fit to every other one.
std::vector<GroupError> held_out(const Cluster& base, const std::vector<CommSample>& samples);

}  // namespace hocket::cost

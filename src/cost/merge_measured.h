// SPDX-License-Identifier: Apache-2.0
// Union of measured times of collectives, of logs that were imported one after another.
#pragma once

#include <vector>

#include "cost/cluster.h"

namespace hocket::cost {

/// Returns the times of both, in order of op, ranks and nodes. A size of a group that both have
/// takes the time of `newer`.
std::vector<MeasuredTimes> merge_measured(const std::vector<MeasuredTimes>& older,
                                          const std::vector<MeasuredTimes>& newer);

}  // namespace hocket::cost

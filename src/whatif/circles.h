// SPDX-License-Identifier: Apache-2.0
// Groups that wait for each other: a replay could not begin any of them.
#pragma once

#include <cstdint>

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// Breaks dependency cycles between groups, which arise where members were paired that never met.
/// Splits off the members that can start without the others into a group of their own. Returns the
/// number of splits. Requires: groups are within a replica and need all members.
int64_t break_circles(MeasuredRun* run);

}  // namespace hocket::whatif

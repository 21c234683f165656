// SPDX-License-Identifier: Apache-2.0
// Groups of ops (collectives, messages) that wait for each other, so that none could start.
#pragma once

#include <cstdint>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// Breaks dependency cycles between groups, which arise where ops of different
/// collectives were matched as one.
/// Splits off the members that can start without the others into a group of their own. Returns the
/// number of splits. Requires: groups are within a replica and need all members.
int64_t break_cycles(MeasuredRun* run);

/// Returns the ops of one dependency cycle, each followed by one that it waits for, itself or
/// through its group; the first one is waited for by the last. Empty if there is none.
std::vector<OpId> find_cycle(const MeasuredRun& run);

}  // namespace hocket::whatif

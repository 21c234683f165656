// SPDX-License-Identifier: Apache-2.0
// Groups that wait for each other: a replay could not begin any of them.
#pragma once

#include <cstdint>

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// Takes groups apart that wait for each other in a circle, as they do where members were paired
/// that never met: members that could start then do so without the others, which are a group of
/// their own. Returns how often. For groups within a replica that all members wait for.
int64_t break_circles(MeasuredRun* run);

}  // namespace hocket::whatif

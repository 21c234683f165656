// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules for random plans.
#pragma once

#include <cstdint>

#include "parallel/plan.h"

namespace hocket::test {

/// Numbers of schedules that set_schedule knows: split ones, and one more.
inline constexpr uint64_t kSplitSchedules = 4, kInterleavedOverlap = kSplitSchedules;
/// Gives the plan, of several pipeline ranks, the which-th of the schedules that split or overlap
/// passes: zb-h1, zb-v, dualpipev, dualpipe, interleaved-overlap. It also gets the stages and
/// micro-batches that the schedule needs; `layers` are spread over the stages, so that some may
/// have none. Of an odd number of ranks, dualpipe is dualpipev.
void set_schedule(uint64_t which, int64_t layers, parallel::Plan* plan);

}  // namespace hocket::test

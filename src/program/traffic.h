// SPDX-License-Identifier: Apache-2.0
// Bytes that leave a rank in a step.
#pragma once

#include <array>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Returns the bytes sent by a rank of the class, per lane: messages, collectives by the algorithm
/// that moves least, routed rows under even routing.
std::array<double, kNumLanes> bytes_sent(const Program& program, ClassId cls);

/// Returns, per kind, the largest group of a task of it; 0: no task with a group. References out of
/// range count as nothing.
std::vector<int64_t> most_members(const Program& program);

}  // namespace hocket::program

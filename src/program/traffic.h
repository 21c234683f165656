// SPDX-License-Identifier: Apache-2.0
// What a program sends: bytes that leave a rank in a step.
#pragma once

#include <array>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Of a rank of the class, by lane: messages as long as they are, collectives by the algorithm of
/// theirs that moves least, rows of routed tensors as even routing has them.
std::array<double, kNumLanes> bytes_sent(const Program& program, ClassId cls);

/// By kind: the most ranks among which a task of it is done; 0: it has no task with a group. What
/// an id out of range refers to counts as nothing.
std::vector<int64_t> most_members(const Program& program);

}  // namespace hocket::program

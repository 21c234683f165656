// SPDX-License-Identifier: Apache-2.0
// What a program sends: bytes that leave a rank in a step.
#pragma once

#include <array>

#include "program/program.h"

namespace hocket::program {

/// Of a rank of the class, by lane: messages as long as they are, collectives by the algorithm of
/// theirs that moves least, rows of routed tensors as even routing has them.
std::array<double, kNumLanes> bytes_sent(const Program& program, ClassId cls);

}  // namespace hocket::program

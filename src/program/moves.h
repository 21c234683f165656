// SPDX-License-Identifier: Apache-2.0
// What communication is about: the parameters that it moves, or whose gradients.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Per task of the class: the parameter that it moves between ranks, or whose gradient, by name; of
/// several, as a bucket holds, the first and how many more. Empty: it is no communication, or moves
/// something else (activations, norms, losses).
std::vector<std::string> parameters_moved(const Program& program, ClassId cls);

}  // namespace hocket::program

// SPDX-License-Identifier: Apache-2.0
// The parameters that communication moves, themselves or as gradients.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Returns, per task of the class, the name of the parameter that it moves between ranks, itself or
/// as a gradient; for a bucket the first name and the number of others. Empty: no communication, or
/// of another tensor (activations, norms, losses).
std::vector<std::string> parameters_moved(const Program& program, ClassId cls);

}  // namespace hocket::program

// SPDX-License-Identifier: Apache-2.0
// Keys of a run that are set but have no, or less, effect.
#pragma once

#include <string>
#include <vector>

#include "run/config.h"

namespace hocket::engine {

/// Returns a line with the reason for each. Requires: the run is derived.
std::vector<std::string> ineffective_keys(const Run& run);

/// Logs a warning for each key, once in a process: a run may be derived several times.
void warn_of_ineffective_keys(const Run& run);

}  // namespace hocket::engine

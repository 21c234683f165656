// SPDX-License-Identifier: Apache-2.0
// Keys of plan and rl that are given and change nothing under the rest of it, or less than they
// say.
#pragma once

#include <string>
#include <vector>

#include "run/config.h"

namespace hocket::engine {

/// A line for each, with why; the run is derived.
std::vector<std::string> idle_keys(const Run& run);

/// Warns of them, of each once in a process: a run may be derived several times.
void warn_of_idle_keys(const Run& run);

}  // namespace hocket::engine

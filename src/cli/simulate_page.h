// SPDX-License-Identifier: Apache-2.0
// The page of `hocket simulate --html`.
#pragma once

#include <string>

#include "cli/inputs.h"
#include "run/compile.h"
#include "sim/simulator.h"

namespace hocket::cli {

/// Returns a self-contained page about a predicted step: its figures, the time of every rank by
/// kind of task, its timeline, and the memory of each class of ranks.
std::string simulate_page(const engine::Run& run, const engine::Compiled& compiled,
                          const sim::SimReport& report, const sim::Replay& replay);

}  // namespace hocket::cli

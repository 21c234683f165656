// SPDX-License-Identifier: Apache-2.0
// The page of `hocket simulate --html`.
#pragma once

#include <string>

#include "cli/inputs.h"
#include "run/compile.h"
#include "sim/simulator.h"

namespace hocket::cli {

/// One self-contained page about a predicted step: its figures, where the time of every rank and
/// kind of task goes, its timeline, and what each class of ranks holds in memory.
std::string simulate_page(const engine::Run& run, const engine::Compiled& compiled,
                          const sim::SimReport& report, const sim::Replay& replay);

}  // namespace hocket::cli

// SPDX-License-Identifier: Apache-2.0
// Memory of a rank: what is persistent, what the arena's offsets add up to, and who holds it when
// most of it is in use.
#pragma once

#include <vector>

#include "check/context.h"
#include "check/hazards.h"

namespace hocket::check {

/// Fills in every class's memory and refuses what exceeds the budget.
std::vector<ClassMemory> check_memory(Context& ctx, const Hazards& hazards);

}  // namespace hocket::check

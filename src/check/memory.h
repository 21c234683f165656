// SPDX-License-Identifier: Apache-2.0
// Memory of a rank against the budget: what the planned offsets add up to, and who holds it when
// most of it is in use.
#pragma once

#include <vector>

#include "check/context.h"

namespace hocket::check {

/// Fills in every class's memory and refuses what exceeds the budget.
std::vector<ClassMemory> check_memory(Context& ctx);

}  // namespace hocket::check

// SPDX-License-Identifier: Apache-2.0
// Memory of a rank against the budget: the total of the planned offsets, and the largest buffers at
// the peak.
#pragma once

#include <vector>

#include "check/context.h"

namespace hocket::check {

/// Returns the memory of every class. Refuses classes that exceed the budget.
std::vector<ClassMemory> check_memory(Context& ctx);

}  // namespace hocket::check

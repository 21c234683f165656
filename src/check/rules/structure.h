// SPDX-License-Identifier: Apache-2.0
// Evaluation of the structural rules, on which all other parts of the check rely.
#pragma once

#include <string>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// Applies all structural rules, and calls `ctx.index_tasks()` once ids are in range. Returns false
/// if anything was refused; the other parts must not run then.
bool check_rules(Context& ctx);

/// Returns the structural rules, in order.
std::vector<RuleInfo> structural_rules();

}  // namespace hocket::check

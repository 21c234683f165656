// SPDX-License-Identifier: Apache-2.0
// Structural rules: a declarative list of (name, predicate) over kinds, groups, buffers, tasks and
// classes. What they hold is what the other parts of the check rely on.
#pragma once

#include <string>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// Applies all structural rules and calls `ctx.place()` once ids are known to be in range. False
/// when anything was refused: the other parts must not run then.
bool check_rules(Context& ctx);

/// The structural rules, in order.
std::vector<RuleInfo> structural_rules();

}  // namespace hocket::check

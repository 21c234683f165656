// SPDX-License-Identifier: Apache-2.0
// Keys of section rl that do not fit each other, the model or the plan.
#pragma once

#include "run/config.h"

namespace hocket::engine {

/// Throws Error for keys of section rl that contradict each other.
void expect_rl(const Run& run);
/// Throws Error for a plan whose training has other log-probabilities than its sampling, unless
/// rl.strict is false.
void expect_strict(const Run& run);

}  // namespace hocket::engine

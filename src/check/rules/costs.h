// SPDX-License-Identifier: Apache-2.0
// FLOPs and bytes of kernels. Predictions rely on them, so they are recomputed from the ops.
#pragma once

#include <string>

#include "check/context.h"

namespace hocket::check {

class Interpreter;

/// Returns how FLOPs or bytes of a kind differ from those that its op computes; "" if they do not.
/// `experts`: of the whole tensors (ops::Call).
std::string cost_differs(const program::Kind& kind, const ops::Op& op, int64_t experts,
                         std::span<const graph::Symbol> symbols);

/// Refuses each kind of compute tasks with FLOPs or bytes other than its op's, at its first task.
/// Work on routed rows depends on the experts of the whole tensor: such kinds are compared only if
/// `interpreter` (null: no reference) knows that number.
void check_costs(Context& ctx, const Interpreter* interpreter);

}  // namespace hocket::check

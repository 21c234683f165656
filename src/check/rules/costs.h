// SPDX-License-Identifier: Apache-2.0
// FLOPs and bytes of kernels: predictions are made of them, so they are compared with what the ops
// work out, not believed.
#pragma once

#include <string>

#include "check/context.h"

namespace hocket::check {

class Interpreter;

/// What FLOPs or bytes of a kind of `op` differ from those that the op works out; "" if none do.
/// `experts`: of the whole tensors, see ops::Call.
std::string cost_differs(const program::Kind& kind, const ops::Op& op, int64_t experts,
                         std::span<const graph::Symbol> symbols);

/// Refuses each kind of compute tasks whose FLOPs or bytes are not its op's, at the kind's first
/// task. Work on routed rows follows from the local types and from how many experts the whole
/// tensor has: such kinds are compared only if `interpreter` (may be null) knows.
void check_costs(Context& ctx, const Interpreter* interpreter);

}  // namespace hocket::check

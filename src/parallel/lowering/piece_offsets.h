// SPDX-License-Identifier: Apache-2.0
// Offsets of ranks' pieces, for ops that index by position.
#pragma once

#include <vector>

#include "graph/layout.h"
#include "ops/op.h"
#include "program/program.h"

namespace hocket::parallel {

/// Layouts and whole types of a task's operands, without accumulators.
struct OperandLayouts {
  std::vector<graph::Layout> in, out;
  std::vector<graph::TensorType> whole_in, whole_out;
};

/// Returns the offset of the rank's piece for every letter that an op indexes by position and that
/// is split. `role`: of the ranks. Tables are added to the program. Throws Error if the size of
/// such a dim is a symbol.
std::vector<program::PieceOffset> piece_offsets(const ops::Op& op, const program::Kind& kind,
                                                const OperandLayouts& layouts, program::RoleId role,
                                                program::Program& program);

}  // namespace hocket::parallel

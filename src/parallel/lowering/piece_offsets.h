// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "graph/layout.h"
#include "ops/op.h"
#include "program/program.h"

namespace hocket::parallel {

/// How the operands of a task lie, accumulators left out, and the whole of what they are parts of.
struct OperandLayouts {
  std::vector<graph::Layout> in, out;
  std::vector<graph::TensorType> whole_in, whole_out;
};

/// Where the ranks' pieces of those letters begin that an op takes by position; letters that are
/// whole are left out. `role`: of the ranks. Tables are added to the program.
std::vector<program::Begin> piece_offsets(const ops::Op& op, const program::Kind& kind,
                                          const OperandLayouts& layouts, program::RoleId role,
                                          program::Program& program);

}  // namespace hocket::parallel

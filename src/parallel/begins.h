// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "graph/layout.h"
#include "ops/op.h"
#include "program/program.h"

namespace hocket::parallel {

/// Where the ranks' pieces of those letters begin that an op takes by position, for inputs that lie
/// as `layouts` say; letters that are whole are left out. `role`: of the ranks. Tables are added to
/// the program.
std::vector<program::Begin> begins_of(const ops::Op& op, const program::Kind& kind,
                                      const std::vector<graph::Layout>& layouts,
                                      program::RoleId role, program::Program& program);

}  // namespace hocket::parallel

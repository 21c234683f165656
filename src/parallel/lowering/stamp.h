// SPDX-License-Identifier: Apache-2.0
// Stamps templates into a program: every micro-batch gets the tasks of its actions and the buffers
// of its values.
#pragma once

#include "parallel/lowering/template.h"
#include "program/program.h"

namespace hocket::parallel {

/// Returns the program of one step: the tasks of every action, in the order of the schedule. It has
/// no dependencies and no memory plan yet, see program::finalize.
program::Program stamp(const Templates& templates);

}  // namespace hocket::parallel

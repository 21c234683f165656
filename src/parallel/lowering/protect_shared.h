// SPDX-License-Identifier: Apache-2.0
// Copies of operands that are still needed after an in-place update.
#pragma once

#include <vector>

#include "parallel/lowering/rank_template.h"
#include "parallel/lowering/task_builder.h"
#include "parallel/lowering/value_table.h"

namespace hocket::parallel {

/// Inserts copies so that no output takes over the buffer of a micro-batch value that a later task
/// or the host reads: the task takes over the copy. `lists`: all tasks of a micro-batch, in an
/// order in which a task that may run after another one also stands after it.
void protect_shared(const std::vector<TaskList*>& lists, ValueTable* values, TaskBuilder* tasks);

}  // namespace hocket::parallel

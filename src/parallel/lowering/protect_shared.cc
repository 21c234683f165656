// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/protect_shared.h"

#include <utility>

namespace hocket::parallel {

using graph::kNone;

namespace {

/// Returns the position of the last task that reads each value, or -1. A read of a view is a read
/// of its base. A task that takes over a buffer counts as a reader, too.
std::vector<int64_t> last_reads(const std::vector<TaskList*>& lists, const ValueTable& values) {
  std::vector<int64_t> last_read(values.size(), -1);
  int64_t position = 0;
  for (const TaskList* list : lists) {
    for (const TaskTemplate& made : *list) {
      for (const ValueId input : made.in) {
        for (ValueId read = input; read != kNone; read = values[read].base) {
          last_read[read] = position;
        }
      }
      for (const auto& [output, value] : made.shares) {
        last_read[value] = position;
      }
      ++position;
    }
  }
  return last_read;
}

}  // namespace

void protect_shared(const std::vector<TaskList*>& lists, ValueTable* values, TaskBuilder* tasks) {
  const std::vector<int64_t> last_read = last_reads(lists, *values);
  int64_t position = 0;
  for (TaskList* list : lists) {
    TaskList result;
    for (TaskTemplate& made : *list) {
      for (auto& [output, taken] : made.shares) {
        const Value& value = (*values)[taken];
        if (value.life != Value::Life::micro_batch) continue;
        if (last_read[taken] <= position && !value.output) continue;
        const ValueId copy =
            values->add_hidden(value.tensor, value.layout, Value::Life::micro_batch);
        tasks->add_local(ops::Meaning::identity, {}, {taken}, copy,
                         {&result, made.task.phase, made.task.layer, made.task.stage});
        taken = copy;
      }
      result.push_back(std::move(made));
      ++position;
    }
    *list = std::move(result);
  }
}

}  // namespace hocket::parallel

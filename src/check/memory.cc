// SPDX-License-Identifier: Apache-2.0
#include "check/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace hocket::check {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Bytes that a buffer is planned to hold: what a ragged one expects, not its bound.
int64_t expected_size(const program::Buffer& buffer) {
  return aligned(buffer.expected_bytes >= 0 ? buffer.expected_bytes : buffer.type.bytes());
}

/// Finds the task during which the most bytes of step buffers are alive, and the largest of these.
/// In issue order, where a buffer lives from its first to its last task: not what the plan takes
/// (that is memory_of's), but what to look at when it is too much.
void find_peak(const Context& ctx, ClassMemory* memory) {
  const RankClass& cls = ctx.program.classes[memory->cls];
  const size_t n = cls.tasks.size();
  std::vector<int32_t> first(cls.buffers.size(), -1);
  std::vector<int32_t> last(cls.buffers.size(), -1);
  std::vector<int32_t> maker(cls.buffers.size(), -1);
  for (size_t i = 0; i < n; ++i) {
    for (const auto* list : {&cls.tasks[i].in, &cls.tasks[i].out}) {
      for (BufferId buffer : *list) {
        const size_t b = static_cast<size_t>(cls.root(buffer));
        if (first[b] < 0) {
          first[b] = static_cast<int32_t>(i);
        }
        last[b] = static_cast<int32_t>(i);
      }
    }
    for (BufferId output : cls.tasks[i].out) {
      int32_t& made = maker[cls.root(output)];
      if (made < 0) {
        made = static_cast<int32_t>(i);
      }
    }
  }
  std::vector<int64_t> change(n + 1, 0);
  for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
    if (cls.buffers[buffer].kind != BufferKind::step || first[buffer] < 0) continue;
    change[first[buffer]] += expected_size(cls.buffers[buffer]);
    change[static_cast<size_t>(last[buffer]) + 1] -= expected_size(cls.buffers[buffer]);
  }
  int64_t alive = 0;
  int64_t most = -1;
  for (size_t i = 0; i < n; ++i) {
    alive += change[i];
    const program::Kind& kind = ctx.program.kind(cls.tasks[i]);
    const int64_t with = alive + (program::is_communication(kind) ? 0 : kind.workspace);
    if (with <= most) continue;
    most = with;
    memory->peak_task = {memory->cls, i};
  }

  const TaskId at = memory->peak_task.task;
  std::vector<BufferId> list;
  for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
    if (cls.buffers[buffer].kind == BufferKind::step && first[buffer] >= 0 && first[buffer] <= at &&
        last[buffer] >= at) {
      list.push_back(buffer);
    }
  }
  std::sort(list.begin(), list.end(), [&](BufferId left, BufferId right) {
    const int64_t left_size = expected_size(cls.buffers[left]);
    const int64_t right_size = expected_size(cls.buffers[right]);
    return left_size != right_size ? left_size > right_size : left < right;
  });
  if (list.size() > 8) {
    list.resize(8);
  }
  for (BufferId buffer_id : list) {
    const program::Buffer& buffer = cls.buffers[buffer_id];
    const int32_t by = maker[buffer_id];
    memory->largest.push_back({buffer_id, expected_size(buffer),
                               fmt::format("{}, written by {}", graph::to_string(buffer.type),
                                           by < 0 ? "nothing" : ctx.name({memory->cls, by}))});
  }
}

/// Who holds it, and which part is most of it: parameters and states shrink by other settings than
/// activations do.
void report_budget(Context& ctx, ClassMemory* memory) {
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const program::Memory& planned = memory->planned;
  const int64_t budget = ctx.options.memory_budget;
  find_peak(ctx, memory);
  std::string text =
      fmt::format("class {} ({}) needs {} per rank ({}), {} more than the budget of {}",
                  memory->cls, ctx.ranks_text(memory->cls), size(planned.total()),
                  program::parts_text(planned), size(planned.total() - budget), size(budget));
  if (!ctx.options.budget_from.empty()) {
    text += fmt::format(" ({})", ctx.options.budget_from);
  }
  if (memory->peak_task.task >= 0) {
    text += fmt::format("; most is in use during {}; largest then:", ctx.name(memory->peak_task));
    for (const LiveBuffer& live : memory->largest) {
      text += fmt::format(" {} ({});", size(live.bytes), live.what);
    }
  }
  const int64_t states = planned.persistent + planned.inputs_outputs;
  ctx.report("memory-budget", ProblemClass::memory,
             memory->peak_task.task >= 0 ? memory->peak_task : TaskRef{memory->cls, -1}, {}, text,
             states > planned.total() / 2
                 ? "parameters and optimizer state dominate: raise plan.pp or plan.ep"
                 : "activations dominate: set plan.recompute, lower plan.micro_batch or raise "
                   "plan.pp");
}

}  // namespace

std::vector<ClassMemory> check_memory(Context& ctx) {
  const std::vector<program::Memory> planned =
      program::memory_with(ctx.program, ctx.options.evaluation);
  std::vector<ClassMemory> list;
  for (size_t i = 0; i < planned.size(); ++i) {
    ClassMemory memory;
    memory.cls = i;
    memory.name = program::stage_name(ctx.program.classes[i]);
    memory.planned = planned[i];
    if (ctx.options.memory_budget > 0 && memory.planned.total() > ctx.options.memory_budget) {
      report_budget(ctx, &memory);
    }
    list.push_back(std::move(memory));
  }
  return list;
}

}  // namespace hocket::check

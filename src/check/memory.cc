// SPDX-License-Identifier: Apache-2.0
#include "check/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"

namespace hocket::check {
namespace {

using program::Phase;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Bytes that a buffer is planned for; of a ragged buffer the expected size, not the bound.
int64_t expected_size(const program::Buffer& buffer) {
  return aligned(buffer.expected_bytes >= 0 ? buffer.expected_bytes : buffer.type.bytes());
}

/// Returns whether `maker` (a task, or -1) gathers a sharded parameter.
bool is_gathered(const Context& ctx, const RankClass& cls, int32_t maker) {
  if (maker < 0) return false;
  const Task& task = cls.tasks[static_cast<size_t>(maker)];
  return program::is_collective(ctx.program.kind(task)) && task.in.size() == 1 &&
         cls.buffers[cls.root(task.in[0])].kind == BufferKind::persistent;
}

/// Bytes in use at the peak, by category. Each category shrinks by other settings.
struct InUse {
  int64_t states = 0;     ///< parameters, moments, inputs and outputs, which live all the time
  int64_t gradients = 0;  ///< made by a backward pass, and used after all passes
  int64_t gathered = 0;   ///< gathered parameters
  int64_t activations = 0;
};

/// Finds the task during which most bytes of step buffers are alive, and the largest buffers then.
/// A buffer lives from its first to its last task in issue order. This explains a plan; the bytes
/// of the plan come from memory_of.
InUse find_peak(const Context& ctx, ClassMemory* memory) {
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
  InUse in_use;
  in_use.states = memory->planned.persistent + memory->planned.inputs_outputs;
  for (BufferId buffer : list) {
    const Phase last_phase = cls.tasks[static_cast<size_t>(last[buffer])].phase;
    const bool is_gradient = last_phase == Phase::grad || last_phase == Phase::optimizer;
    const int64_t bytes = expected_size(cls.buffers[buffer]);
    if (is_gradient) {
      in_use.gradients += bytes;
    } else if (is_gathered(ctx, cls, maker[buffer])) {
      in_use.gathered += bytes;
    } else {
      in_use.activations += bytes;
    }
  }
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
  return in_use;
}

/// Returns settings, not yet made, that shrink the largest category.
std::string way_out(const Context& ctx, const InUse& in_use) {
  const nlohmann::json config = ctx.program.config.empty()
                                    ? nlohmann::json::object()
                                    : parse_json(ctx.program.config, "program");
  const nlohmann::json plan = config.value("plan", nlohmann::json::object());
  const nlohmann::json shard = plan.value("shard", nlohmann::json::object());
  const auto size = [&](const char* key) { return plan.value(key, int64_t{1}); };
  const auto is_whole = [&](const char* key) {
    return !shard.contains(key) || shard[key].is_null() || shard[key] == "none";
  };
  const int64_t replicas = size("dp") * size("cp");
  const bool has_experts =
      std::any_of(ctx.program.kinds.begin(), ctx.program.kinds.end(), [](const auto& kind) {
        return std::any_of(kind.out.begin(), kind.out.end(),
                           [](const graph::TensorType& type) { return type.routed(); });
      });
  const bool splits_experts_further = has_experts && size("ep") < replicas;
  const bool experts_are_whole = has_experts && size("etp") < size("tp");
  const bool states_exceed = in_use.states > ctx.options.memory_budget;
  const int64_t most =
      std::max({in_use.states, in_use.gradients, in_use.gathered, in_use.activations});
  std::string sort;
  std::vector<std::string> ways;
  const auto offer = [&](bool helps, const char* way) {
    if (helps) {
      ways.push_back(way);
    }
  };
  if (states_exceed || most == in_use.states) {
    sort = "parameters and optimizer state";
    const bool is_split = !is_whole("optimizer") || !is_whole("grads") || !is_whole("params");
    offer(replicas > 1 && !is_split, "set plan.shard.optimizer");
    offer(replicas > 1 && is_split && is_whole("params"), "set plan.shard.params");
    offer(splits_experts_further, "raise plan.ep");
    offer(experts_are_whole, "raise plan.etp");
    offer(true, "raise plan.pp or plan.tp");
  } else if (most == in_use.gradients) {
    sort = "gradients";
    offer(splits_experts_further, "raise plan.ep");
    offer(experts_are_whole, "raise plan.etp");
    offer(replicas > 1 && is_whole("grads"), "set plan.shard.grads");
    offer(true, "raise plan.pp or plan.tp");
  } else if (most == in_use.gathered) {
    sort = "gathered parameters";
    offer(!shard.value("reshard_after_forward", true),
          "leave plan.shard.reshard_after_forward and reshard_after_backward true");
    offer(splits_experts_further, "raise plan.ep");
    offer(experts_are_whole, "raise plan.etp");
    offer(true, "raise plan.pp or plan.tp");
  } else {
    sort = "activations";
    const std::string recompute = plan.value("recompute", std::string("none"));
    offer(recompute == "none", "set plan.recompute: selective or full");
    offer(recompute == "selective", "set plan.recompute: full");
    offer(size("micro_batch") > 1, "lower plan.micro_batch");
    offer(size("tp") > 1 && !plan.value("sequence_parallel", false), "set plan.sequence_parallel");
    offer(true, "raise plan.pp, plan.cp or plan.tp");
  }
  return fmt::format("{} {}: {}; `hocket plan` searches for plans that fit", sort,
                     states_exceed ? "alone exceed the budget" : "dominate", join(ways, ", or "));
}

/// Reports a class over budget, with its largest buffers and settings that would help.
void report_budget(Context& ctx, ClassMemory* memory) {
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const program::Memory& planned = memory->planned;
  const int64_t budget = ctx.options.memory_budget;
  const InUse in_use = find_peak(ctx, memory);
  std::string text =
      fmt::format("class {} ({}) needs {} per rank ({}), {} more than the budget of {}",
                  memory->cls, ctx.ranks_text(memory->cls), size(planned.total()),
                  program::parts_text(planned), size(planned.total() - budget), size(budget));
  if (!ctx.options.budget_from.empty()) {
    text += fmt::format(" ({})", ctx.options.budget_from);
  }
  if (memory->peak_task.task >= 0) {
    text += fmt::format("; most is in use during {}; largest then:", ctx.name(memory->peak_task));
    const std::vector<LiveBuffer>& largest = memory->largest;
    for (size_t i = 0; i < largest.size();) {
      const auto differs = [&](const LiveBuffer& other) { return other.bytes != largest[i].bytes; };
      const auto end =
          std::find_if(largest.begin() + static_cast<std::ptrdiff_t>(i), largest.end(), differs);
      const auto count = static_cast<size_t>(end - largest.begin()) - i;
      text += count == 1 ? fmt::format(" {} ({});", size(largest[i].bytes), largest[i].what)
                         : fmt::format(" {} of {} (the first: {});", count, size(largest[i].bytes),
                                       largest[i].what);
      i += count;
    }
  }
  ctx.report("memory-budget", ProblemClass::memory,
             memory->peak_task.task >= 0 ? memory->peak_task : TaskRef{memory->cls, -1}, {}, text,
             way_out(ctx, in_use));
}

}  // namespace

std::vector<ClassMemory> check_memory(Context& ctx) {
  const std::vector<program::Memory> planned =
      program::memory_with(ctx.program, ctx.options.evaluation, ctx.options.kernels);
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

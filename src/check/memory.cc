// SPDX-License-Identifier: Apache-2.0
#include "check/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace hocket::check {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Bytes that a buffer is planned to hold: what a ragged one expects, not its bound.
int64_t expected_size(const program::Buffer& b) {
  return aligned(b.expected_bytes >= 0 ? b.expected_bytes : b.type.bytes());
}

/// Finds the task during which the most bytes of step buffers are alive, and the largest of these.
void find_peak(const Context& ctx, ClassMemory* m) {
  const RankClass& c = ctx.program.classes[static_cast<size_t>(m->cls)];
  const size_t n = c.tasks.size();
  std::vector<int32_t> first(c.buffers.size(), -1), last(c.buffers.size(), -1);
  std::vector<int32_t> maker(c.buffers.size(), -1);
  for (size_t i = 0; i < n; ++i) {
    for (const auto* list : {&c.tasks[i].in, &c.tasks[i].out}) {
      for (BufferId b : *list) {
        const size_t k = static_cast<size_t>(b);
        if (first[k] < 0) {
          first[k] = static_cast<int32_t>(i);
        }
        last[k] = static_cast<int32_t>(i);
      }
    }
    for (BufferId b : c.tasks[i].out) {
      if (maker[static_cast<size_t>(b)] < 0) {
        maker[static_cast<size_t>(b)] = static_cast<int32_t>(i);
      }
    }
  }
  std::vector<int64_t> change(n + 1, 0);
  for (size_t b = 0; b < c.buffers.size(); ++b) {
    if (c.buffers[b].kind != BufferKind::step || first[b] < 0) continue;
    change[static_cast<size_t>(first[b])] += expected_size(c.buffers[b]);
    change[static_cast<size_t>(last[b]) + 1] -= expected_size(c.buffers[b]);
  }
  int64_t alive = 0, most = -1;
  for (size_t i = 0; i < n; ++i) {
    alive += change[i];
    const int64_t with = alive + ctx.program.kind(c.tasks[i]).workspace;
    if (with <= most) continue;
    most = with;
    m->peak_task = {m->cls, static_cast<int32_t>(i)};
  }

  const int32_t at = m->peak_task.task;
  std::vector<BufferId> list;
  for (size_t b = 0; b < c.buffers.size(); ++b) {
    if (c.buffers[b].kind == BufferKind::step && first[b] >= 0 && first[b] <= at && last[b] >= at) {
      list.push_back(static_cast<BufferId>(b));
    }
  }
  std::sort(list.begin(), list.end(), [&](BufferId a, BufferId b) {
    const int64_t x = expected_size(c.buffers[static_cast<size_t>(a)]);
    const int64_t y = expected_size(c.buffers[static_cast<size_t>(b)]);
    return x != y ? x > y : a < b;
  });
  if (list.size() > 8) {
    list.resize(8);
  }
  for (BufferId b : list) {
    const program::Buffer& buffer = c.buffers[static_cast<size_t>(b)];
    const int32_t by = maker[static_cast<size_t>(b)];
    m->largest.push_back({b, expected_size(buffer),
                          fmt::format("{}, written by {}", graph::to_string(buffer.type),
                                      by < 0 ? "nothing" : ctx.name({m->cls, by}))});
  }
}

void report_budget(Context& ctx, ClassMemory* m) {
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const program::Memory& planned = m->planned;
  const int64_t budget = ctx.options.memory_budget;
  find_peak(ctx, m);
  std::string text =
      fmt::format("class {} ({}) needs {} per rank ({}), {} more than the budget of {}", m->cls,
                  ctx.ranks_text(m->cls), size(planned.total()), program::parts_text(planned),
                  size(planned.total() - budget), size(budget));
  if (!ctx.options.budget_from.empty()) {
    text += fmt::format(" ({})", ctx.options.budget_from);
  }
  if (m->peak_task.task >= 0) {
    text += fmt::format("; most is in use during {}; largest then:", ctx.name(m->peak_task));
    for (const LiveBuffer& b : m->largest) {
      text += fmt::format(" {} ({});", size(b.bytes), b.what);
    }
  }
  const int64_t states = planned.persistent + planned.inputs_outputs;
  ctx.report("memory-budget", ProblemClass::memory,
             m->peak_task.task >= 0 ? m->peak_task : TaskRef{m->cls, -1}, {}, text,
             states > planned.total() / 2
                 ? "parameters and optimizer state dominate: raise plan.pp or plan.ep"
                 : "activations dominate: set plan.recompute, lower plan.micro_batch or raise "
                   "plan.pp");
}

}  // namespace

std::vector<ClassMemory> check_memory(Context& ctx) {
  const std::vector<program::Memory> planned = program::memory_of(ctx.program);
  std::vector<ClassMemory> list;
  for (size_t i = 0; i < planned.size(); ++i) {
    ClassMemory m;
    m.cls = static_cast<int32_t>(i);
    m.planned = planned[i];
    if (i < ctx.options.evaluation.size()) {
      m.planned.evaluation = ctx.options.evaluation[i];
    }
    if (ctx.options.memory_budget > 0 && m.planned.total() > ctx.options.memory_budget) {
      report_budget(ctx, &m);
    }
    list.push_back(std::move(m));
  }
  return list;
}

}  // namespace hocket::check

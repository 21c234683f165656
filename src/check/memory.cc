// SPDX-License-Identifier: Apache-2.0
#include "check/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace hocket::check {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Bytes that a buffer is planned to hold: what a ragged one expects, not its bound.
int64_t planned(const program::Buffer& b) {
  return aligned(b.expected_bytes >= 0 ? b.expected_bytes : b.type.bytes());
}

/// Most bytes of the arena that are alive during one task, ragged buffers at their expected size:
/// no plan can do with less. Notes the task and, if wanted, the largest buffers then.
int64_t find_peak(const Context& ctx, int32_t cls, bool list_largest, ClassMemory* m) {
  const RankClass& c = ctx.program.classes[static_cast<size_t>(cls)];
  const size_t n = c.tasks.size();
  std::vector<int32_t> first(c.buffers.size(), -1), last(c.buffers.size(), -1);
  std::vector<int32_t> maker(c.buffers.size(), -1);
  for (size_t i = 0; i < n; ++i) {
    for (const auto* list : {&c.tasks[i].in, &c.tasks[i].out})
      for (BufferId b : *list) {
        const size_t k = static_cast<size_t>(b);
        if (first[k] < 0) first[k] = static_cast<int32_t>(i);
        last[k] = static_cast<int32_t>(i);
      }
    for (BufferId b : c.tasks[i].out)
      if (maker[static_cast<size_t>(b)] < 0)
        maker[static_cast<size_t>(b)] = static_cast<int32_t>(i);
  }
  std::vector<int64_t> change(n + 1, 0);
  for (size_t b = 0; b < c.buffers.size(); ++b) {
    if (c.buffers[b].kind != BufferKind::step || first[b] < 0) continue;
    change[static_cast<size_t>(first[b])] += planned(c.buffers[b]);
    change[static_cast<size_t>(last[b]) + 1] -= planned(c.buffers[b]);
  }
  int64_t alive = 0, most = -1;
  for (size_t i = 0; i < n; ++i) {
    alive += change[i];
    const int64_t with = alive + ctx.program.kind(c.tasks[i]).workspace;
    if (with <= most) continue;
    most = with;
    m->peak_task = {cls, static_cast<int32_t>(i)};
  }
  if (!list_largest) return most;
  const int32_t at = m->peak_task.task;
  std::vector<BufferId> list;
  for (size_t b = 0; b < c.buffers.size(); ++b)
    if (c.buffers[b].kind == BufferKind::step && first[b] >= 0 && first[b] <= at && last[b] >= at)
      list.push_back(static_cast<BufferId>(b));
  std::sort(list.begin(), list.end(), [&](BufferId a, BufferId b) {
    const int64_t x = planned(c.buffers[static_cast<size_t>(a)]);
    const int64_t y = planned(c.buffers[static_cast<size_t>(b)]);
    return x != y ? x > y : a < b;
  });
  if (list.size() > 8) list.resize(8);
  for (BufferId b : list) {
    const program::Buffer& buffer = c.buffers[static_cast<size_t>(b)];
    const int32_t by = maker[static_cast<size_t>(b)];
    m->largest.push_back({b, planned(buffer),
                          fmt::format("{}, written by {}", graph::to_string(buffer.type),
                                      by < 0 ? "nothing" : ctx.name({cls, by}))});
  }
  return most;
}

}  // namespace

std::vector<ClassMemory> check_memory(Context& ctx, const Hazards& hazards) {
  std::vector<ClassMemory> list;
  for (size_t i = 0; i < ctx.program.classes.size(); ++i) {
    const RankClass& c = ctx.program.classes[i];
    ClassMemory m;
    m.cls = static_cast<int32_t>(i);
    m.arena_planned = c.arena_bytes;
    m.arena_used = ctx.planned ? hazards.arena_used(m.cls) : 0;
    int64_t ragged = 0;  // address space that the plan does not expect to fill
    for (const program::Buffer& b : c.buffers) {
      if (b.kind == BufferKind::persistent)
        m.persistent += aligned(b.type.bytes());
      else if (b.kind != BufferKind::step)
        m.host_io += aligned(b.type.bytes());
      else if (b.expected_bytes >= 0)
        ragged = std::max(ragged, aligned(b.type.bytes()) - planned(b));
    }
    // Ragged buffers count with what the plan expects, not with the addresses that they reserve.
    const int64_t reserve = c.expected_bytes > 0 ? c.arena_bytes - c.expected_bytes : 0;
    if (ctx.planned && reserve > 0) {
      const int64_t alive = find_peak(ctx, m.cls, false, &m);
      if (alive > c.expected_bytes)
        ctx.report(
            "arena-expected", ProblemClass::memory, m.peak_task, {},
            fmt::format("class {} plans {} for its arena, but {} are alive during {} even with "
                        "ragged buffers at their expected size",
                        m.cls, human_bytes(static_cast<double>(c.expected_bytes)),
                        human_bytes(static_cast<double>(alive)), ctx.name(m.peak_task)),
            "run the memory plan after the last change of buffers");
    }
    m.peak = m.persistent + m.host_io + m.arena_used - std::max<int64_t>(reserve, 0);
    if (ctx.options.memory_budget > 0 && m.peak > ctx.options.memory_budget) {
      find_peak(ctx, m.cls, true, &m);
      std::string text = fmt::format(
          "class {} ({}) needs {} per rank ({} persistent, {} inputs and outputs, {} arena), {} "
          "more "
          "than the budget of {}",
          m.cls, ctx.ranks_text(m.cls), human_bytes(static_cast<double>(m.peak)),
          human_bytes(static_cast<double>(m.persistent)),
          human_bytes(static_cast<double>(m.host_io)),
          human_bytes(static_cast<double>(m.arena_used)),
          human_bytes(static_cast<double>(m.peak - ctx.options.memory_budget)),
          human_bytes(static_cast<double>(ctx.options.memory_budget)));
      if (m.peak_task.task >= 0) {
        text += fmt::format("; most is in use during {}; largest then:", ctx.name(m.peak_task));
        for (const LiveBuffer& b : m.largest)
          text += fmt::format(" {} ({});", human_bytes(static_cast<double>(b.bytes)), b.what);
      }
      if (ragged > 0)
        text += fmt::format(
            " a ragged buffer reserves up to {} of addresses that it is not "
            "expected to fill",
            human_bytes(static_cast<double>(ragged)));
      const bool states = m.persistent + m.host_io > m.peak / 2;
      ctx.report("memory-budget", ProblemClass::memory,
                 m.peak_task.task >= 0 ? m.peak_task : TaskRef{m.cls, -1}, {}, text,
                 states
                     ? "parameters and optimizer state dominate: raise plan.pp or plan.ep"
                     : "activations dominate: set plan.recompute, lower plan.micro_batch or raise "
                       "plan.pp");
    }
    list.push_back(std::move(m));
  }
  return list;
}

}  // namespace hocket::check

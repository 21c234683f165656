// SPDX-License-Identifier: Apache-2.0
#include "check/hazards.h"

#include <fmt/format.h>

namespace hocket::check {
namespace {
constexpr int32_t kNever = -2, kHost = -1;
constexpr const char* kAddEdge = "add a dependency between the two tasks";
}  // namespace

Hazards::Hazards(Context& ctx) : ctx_(ctx) {
  for (const RankClass& cls : ctx.program.classes) {
    ClassState state;
    state.access.assign(cls.buffers.size(), Clock{});
    state.writer.assign(cls.buffers.size(), kNever);
    state.prior.assign(cls.buffers.size(), kNever);
    state.held.assign(cls.buffers.size(), 0);
    for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
      if (cls.buffers[buffer].kind == BufferKind::persistent ||
          cls.buffers[buffer].kind == BufferKind::input) {
        state.writer[buffer] = kHost;
      }
    }
    state_.push_back(std::move(state));
  }
}

void Hazards::race(int32_t first, int32_t second, const std::string& what, const char* fix) {
  if (!reported_.insert({first, second}).second) return;
  const TaskRef ref = ctx_.ref(first), task_ref = ctx_.ref(second);
  const std::string text = first == second ? fmt::format("{} {}", ctx_.name(task_ref), what)
                                           : fmt::format("{} {}: nothing orders it after {}",
                                                         ctx_.name(task_ref), what, ctx_.name(ref));
  ctx_.report("race", ProblemClass::order, task_ref, {ref}, text, fix);
}

std::string Hazards::owner_name(ClassId cls, int32_t owner) const {
  if (owner >= 0) return ctx_.buffer_name(cls, owner);
  return "the workspace of " + ctx_.name(ctx_.ref(-1 - owner));
}

void Hazards::visit(ClassId cls, TaskId task, int32_t global, const Clock& before,
                    std::vector<BufferId>* lost) {
  ClassState& state = state_[cls];
  const RankClass& rc = ctx_.program.classes[cls];
  const Task& t = rc.tasks[task];
  const size_t lane = place_of(t.lane);
  const int32_t now = ctx_.position[global] + 1;

  auto check_read = [&](BufferId buffer_id) {
    const size_t i = buffer_id;
    const int32_t w = state.writer[i];
    if (w == kNever) {
      if (reported_.insert({-2 - buffer_id.value(), global}).second) {
        std::vector<TaskRef> writers;
        for (size_t k = 0; k < rc.tasks.size() && writers.size() < 4; ++k) {
          for (BufferId out : rc.tasks[k].out) {
            if (out == buffer_id) {
              writers.push_back({cls, k});
            }
          }
        }
        std::string text = fmt::format("{} reads {}, which nothing has written before it",
                                       ctx_.name({cls, task}), ctx_.buffer_name(cls, buffer_id));
        text += writers.empty() ? " (nothing ever does)"
                                : fmt::format(" ({} does, later)", ctx_.name(writers[0]));
        ctx_.report("read-before-write", ProblemClass::order, {cls, task}, writers, text,
                    "write the buffer first, and order the two tasks");
      }
      lost->push_back(buffer_id);
      return;
    }
    if (w >= 0) {
      const size_t wl = ctx_.lane_of[w];
      if (ctx_.position[w] >= before[wl]) {
        race(w, global, fmt::format("reads {}", ctx_.buffer_name(cls, buffer_id)), kAddEdge);
      }
    }
    if (ctx_.planned && rc.buffers[i].kind == BufferKind::step && !state.held[i]) {
      if (reported_.insert({-2 - buffer_id.value(), global}).second) {
        const int64_t begin = rc.buffers[i].offset, end = begin + rc.buffers[i].type.bytes();
        int32_t by = buffer_id.value();
        auto it = state.arena.upper_bound(begin);
        if (it != state.arena.begin()) {
          --it;
        }
        for (; it != state.arena.end() && it->first < end; ++it) {
          if (it->second.end > begin && it->second.owner != buffer_id) {
            by = it->second.owner;
          }
        }
        std::vector<TaskRef> related;
        const int32_t task_by = by < 0 ? -1 - by : state.writer[by];
        if (task_by >= 0) {
          related.push_back(ctx_.ref(task_by));
        }
        if (w >= 0) {
          related.push_back(ctx_.ref(w));
        }
        ctx_.report("overwritten", ProblemClass::memory, {cls, task}, related,
                    fmt::format("{} reads {}, whose memory was taken over by {} before",
                                ctx_.name({cls, task}), ctx_.buffer_name(cls, buffer_id),
                                owner_name(cls, by)),
                    "run the memory plan after the last change of tasks or dependencies");
      }
      lost->push_back(buffer_id);
    }
  };

  for (BufferId input : t.in) {
    check_read(input);
  }
  if (!t.accumulate.empty()) {
    for (size_t output = 0; output < t.out.size(); ++output) {
      if (t.accumulate.contains(output)) {
        check_read(t.out[output]);
      }
    }
  }
  for (BufferId output : t.out) {
    const Clock& seen = state.access[output];
    bool ordered = true;
    for (size_t l = 0; l < seen.size(); ++l) {
      ordered &= seen[l] <= before[l];
    }
    if (ordered) continue;
    for (size_t l = 0; l < seen.size(); ++l) {
      if (seen[l] > before[l]) {
        race(ctx_.global(cls, ctx_.lanes[cls][l][seen[l] - 1]), global,
             fmt::format("writes {}", ctx_.buffer_name(cls, output)), kAddEdge);
      }
    }
  }

  for (BufferId input : t.in) {
    state.access[input][lane] = now;
  }
  for (BufferId output : t.out) {
    const size_t i = output;
    const program::Buffer& buffer = rc.buffers[i];
    if (ctx_.planned && buffer.kind == BufferKind::step && !state.held[i]) {
      take(cls, buffer.offset, buffer.offset + buffer.type.bytes(), output.value(), global, before);
      state.held[i] = 1;
    }
    state.access[i][lane] = now;
    if (state.writer[i] != global) {
      state.prior[i] = state.writer[i];
    }
    state.writer[i] = global;
  }
  if (ctx_.planned) {
    const int64_t bytes = ctx_.program.kind(t).workspace;
    if (bytes > 0 && t.workspace >= 0) {
      take(cls, t.workspace, t.workspace + bytes, -1 - global, global, before);
    }
  }
}

void Hazards::take(ClassId cls, int64_t begin, int64_t end, int32_t owner, int32_t global,
                   const Clock& before) {
  ClassState& state = state_[cls];
  auto it = state.arena.lower_bound(begin);
  if (it != state.arena.end() && it->first == begin && it->second.end == end) {
    if (it->second.owner != owner) {
      evict(cls, it->second.owner, owner, global, before);
    }
    it->second.owner = owner;
    return;
  }
  if (it != state.arena.begin()) {
    auto left = std::prev(it);
    if (left->second.end > begin) {
      const Range old = left->second;
      evict(cls, old.owner, owner, global, before);
      left->second.end = begin;
      if (old.end > end) {
        it = state.arena.emplace_hint(it, end, old);
      }
    }
  }
  while (it != state.arena.end() && it->first < end) {
    const Range old = it->second;
    if (old.owner != owner) {
      evict(cls, old.owner, owner, global, before);
    }
    it = state.arena.erase(it);
    if (old.end > end) {
      it = state.arena.emplace_hint(it, end, old);
    }
  }
  state.arena.emplace_hint(it, begin, Range{end, owner});
}

void Hazards::evict(ClassId cls, int32_t owner, int32_t by, int32_t global, const Clock& before) {
  ClassState& state = state_[cls];
  auto overlap = [&](int32_t earlier) {
    race(earlier, global,
         fmt::format("puts {} over {}", by < 0 ? "its workspace" : owner_name(cls, by),
                     owner_name(cls, owner)),
         "run the memory plan after the last change of tasks or dependencies");
  };
  if (owner < 0) {
    const int32_t user = -1 - owner;
    const size_t lane = ctx_.lane_of[user];
    if (ctx_.position[user] >= before[lane]) {
      overlap(user);
    }
    return;
  }
  state.held[owner] = 0;
  const Clock& seen = state.access[owner];
  for (size_t l = 0; l < seen.size(); ++l) {
    if (seen[l] > before[l]) {
      overlap(ctx_.global(cls, ctx_.lanes[cls][l][seen[l] - 1]));
    }
  }
}

}  // namespace hocket::check

// SPDX-License-Identifier: Apache-2.0
#include "check/hazards.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/memory.h"

namespace hocket::check {
namespace {
constexpr int32_t kNever = -2, kHost = -1;
constexpr const char* kAddEdge = "add a dependency between the two tasks";
}  // namespace

Hazards::Hazards(Context& ctx) : ctx_(ctx) {
  for (size_t c = 0; c < ctx.program.classes.size(); ++c) {
    const RankClass& cls = ctx.program.classes[c];
    ClassState state;
    if (ctx.views[c].any()) {
      state.used.assign(cls.buffers.size(), Clock{});
      state.former.assign(cls.buffers.size(), Clock{});
    }
    state.access.assign(cls.buffers.size(), Clock{});
    state.writer.assign(cls.buffers.size(), kNever);
    state.prior.assign(cls.buffers.size(), kNever);
    state.memory.assign(cls.buffers.size(), Memory::missing_text);
    for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
      if (cls.buffers[buffer].kind == BufferKind::persistent ||
          cls.buffers[buffer].kind == BufferKind::input) {
        state.writer[buffer] = kHost;
      }
    }
    state_.push_back(std::move(state));
  }
}

int32_t Hazards::writer(ClassId cls, BufferId buffer, int32_t reader) const {
  const ClassState& state = state_[cls];
  const auto before_reader = [&](BufferId id) {
    const int32_t last = state.writer[id];
    return last >= 0 && last == reader ? state.prior[id] : last;
  };
  int32_t writer = before_reader(buffer);
  for (BufferId other : ctx_.views[cls].meets(buffer)) {
    const int32_t also = before_reader(other);
    // Tasks of one class are in issue order.
    writer = std::max(writer, also);
  }
  return writer;
}

bool Hazards::was_written(const ClassState& state, ClassId cls, BufferId buffer) const {
  if (state.writer[buffer] != kNever) return true;
  const auto others = ctx_.views[cls].meets(buffer);
  return std::any_of(others.begin(), others.end(),
                     [&](BufferId other) { return state.writer[other] != kNever; });
}

void Hazards::race(int32_t earlier, int32_t later, const std::string& what, const char* fix) {
  if (!reported_.insert({earlier, later}).second) return;
  const TaskRef first = ctx_.ref(earlier);
  const TaskRef second = ctx_.ref(later);
  std::string text = fmt::format("{} {}", ctx_.name(second), what);
  if (earlier != later) {
    text += fmt::format(": nothing orders it after {}", ctx_.name(first));
  }
  ctx_.report("race", ProblemClass::order, second, {first}, text, fix);
}

std::string Hazards::owner_name(ClassId cls, int32_t owner) const {
  if (owner >= 0) return ctx_.buffer_name(cls, owner);
  return "the workspace of " + ctx_.name(ctx_.ref(-1 - owner));
}

int32_t Hazards::last_in_lane(ClassId cls, size_t lane, int32_t seen) const {
  const auto& tasks = ctx_.lanes[cls][lane];
  return ctx_.global(cls, tasks[seen - 1]);
}

void Hazards::visit(ClassId cls, TaskId task, int32_t global, const Clock& before,
                    std::vector<BufferId>* lost) {
  // Checks all reads and writes before recording them: an in-place update reads its predecessor's
  // output. A read needs its writer to have finished, a write all earlier accesses. Per lane only
  // the last access is kept, since lanes run in order.
  const Visit at{cls, task, global, before};
  const RankClass& rank_class = ctx_.program.classes[cls];
  const Task& visited = rank_class.tasks[task];
  for (BufferId input : visited.in) {
    if (!check_read(at, input)) {
      lost->push_back(input);
    }
  }
  if (!visited.accumulate.empty()) {
    for (size_t output = 0; output < visited.out.size(); ++output) {
      if (visited.accumulate.contains(output) && !check_read(at, visited.out[output])) {
        lost->push_back(visited.out[output]);
      }
    }
  }
  for (BufferId output : visited.out) {
    check_write(at, output);
    if (!check_rest(at, output)) {
      lost->push_back(output);
    }
  }
  record(at, visited);
}

bool Hazards::check_read(const Visit& at, BufferId buffer_id) {
  // A view needs any part written; view-tiled checks that all of it was.
  const ClassState& state = state_[at.cls];
  const RankClass& rank_class = ctx_.program.classes[at.cls];
  if (!was_written(state, at.cls, buffer_id)) {
    report_unwritten(at, buffer_id);
    return false;
  }
  check_writer(at, buffer_id, buffer_id);
  for (BufferId other : ctx_.views[at.cls].meets(buffer_id)) {
    check_writer(at, other, buffer_id);
  }
  const BufferId root = rank_class.root(buffer_id);
  if (ctx_.planned && rank_class.buffers[root].kind == BufferKind::step &&
      state.memory[root] != Memory::held) {
    report_overwritten(at, buffer_id, "reads");
    return false;
  }
  return true;
}

bool Hazards::check_rest(const Visit& at, BufferId buffer_id) {
  const BufferId root = ctx_.program.classes[at.cls].root(buffer_id);
  if (root == buffer_id || state_[at.cls].memory[root] != Memory::lost) return true;
  report_overwritten(at, buffer_id, "writes");
  return false;
}

void Hazards::check_writer(const Visit& at, BufferId writer_of, BufferId buffer_id) {
  const int32_t writer = state_[at.cls].writer[writer_of];
  if (writer < 0 || ctx_.position[writer] < at.before[ctx_.lane_of[writer]]) return;
  race(writer, at.global, fmt::format("reads {}", ctx_.buffer_name(at.cls, buffer_id)), kAddEdge);
}

void Hazards::report_unwritten(const Visit& at, BufferId buffer_id) {
  if (!reported_.insert({-2 - buffer_id, at.global}).second) return;
  const RankClass& rank_class = ctx_.program.classes[at.cls];
  std::vector<TaskRef> writers;
  for (size_t task = 0; task < rank_class.tasks.size() && writers.size() < 4; ++task) {
    for (BufferId output : rank_class.tasks[task].out) {
      if (output == buffer_id) {
        writers.push_back({at.cls, static_cast<int32_t>(task)});
      }
    }
  }
  std::string text = fmt::format("{} reads {}, which nothing has written before it",
                                 ctx_.name({at.cls, at.task}), ctx_.buffer_name(at.cls, buffer_id));
  text += writers.empty() ? " (nothing ever does)"
                          : fmt::format(" ({} does, later)", ctx_.name(writers[0]));
  ctx_.report("read-before-write", ProblemClass::order, {at.cls, at.task}, writers, text,
              "write the buffer first, and order the two tasks");
}

void Hazards::report_overwritten(const Visit& at, BufferId buffer_id, const char* does) {
  if (!reported_.insert({-2 - buffer_id, at.global}).second) return;
  const ClassState& state = state_[at.cls];
  const BufferId root = ctx_.program.classes[at.cls].root(buffer_id);
  const program::Buffer& buffer = ctx_.program.classes[at.cls].buffers[root];
  const int64_t begin = buffer.offset;
  const int64_t end = begin + buffer.type.bytes();
  int32_t by = root.value();  // becomes the last other owner of any of its addresses
  const auto& arena = state.arena[place_of(buffer.space)];
  auto range = arena.upper_bound(begin);
  if (range != arena.begin()) {
    --range;
  }
  for (; range != arena.end() && range->first < end; ++range) {
    if (range->second.end > begin && range->second.owner != root) {
      by = range->second.owner;
    }
  }
  std::vector<TaskRef> related;
  const int32_t taken_by = by < 0 ? -1 - by : writer(at.cls, by);
  for (const int32_t global : {taken_by, writer(at.cls, buffer_id)}) {
    if (global >= 0) {
      related.push_back(ctx_.ref(global));
    }
  }
  ctx_.report("overwritten", ProblemClass::memory, {at.cls, at.task}, related,
              fmt::format("{} {} {}, whose memory was taken over by {} before",
                          ctx_.name({at.cls, at.task}), does, ctx_.buffer_name(at.cls, buffer_id),
                          owner_name(at.cls, by)),
              "run the memory plan after the last change of tasks or dependencies");
}

void Hazards::check_write(const Visit& at, BufferId buffer_id) {
  check_accesses(at, state_[at.cls].access[buffer_id], buffer_id);
  for (BufferId other : ctx_.views[at.cls].meets(buffer_id)) {
    check_accesses(at, state_[at.cls].access[other], buffer_id);
  }
  check_former(at, buffer_id);
}

void Hazards::check_former(const Visit& at, BufferId buffer_id) {
  const ClassState& state = state_[at.cls];
  const BufferId root = ctx_.program.classes[at.cls].root(buffer_id);
  if (state.former.empty() || state.memory[root] != Memory::held) return;
  const Clock& seen = state.former[root];
  for (size_t lane = 0; lane < seen.size(); ++lane) {
    if (seen[lane] <= at.before[lane]) continue;
    race(last_in_lane(at.cls, lane, seen[lane]), at.global,
         fmt::format("writes {} where another buffer lay", ctx_.buffer_name(at.cls, buffer_id)),
         "run the memory plan after the last change of tasks or dependencies");
  }
}

void Hazards::check_accesses(const Visit& at, const Clock& seen, BufferId buffer_id) {
  for (size_t lane = 0; lane < seen.size(); ++lane) {
    if (seen[lane] <= at.before[lane]) continue;
    race(last_in_lane(at.cls, lane, seen[lane]), at.global,
         fmt::format("writes {}", ctx_.buffer_name(at.cls, buffer_id)), kAddEdge);
  }
}

void Hazards::record(const Visit& at, const Task& task) {
  // A buffer takes its addresses when it is first written, so that the former owner may be read
  // until then. It keeps them until another owner takes them.
  ClassState& state = state_[at.cls];
  const RankClass& rank_class = ctx_.program.classes[at.cls];
  const size_t lane = static_cast<size_t>(task.lane);
  const int32_t now = ctx_.position[at.global] + 1;
  for (BufferId input : task.in) {
    state.access[input][lane] = now;
    uses_of(state, rank_class.root(input))[lane] = now;
  }
  for (BufferId output : task.out) {
    const size_t i = static_cast<size_t>(output);
    const BufferId root = rank_class.root(output);
    const program::Buffer& buffer = rank_class.buffers[root];
    if (ctx_.planned && buffer.kind == BufferKind::step && state.memory[root] != Memory::held) {
      if (!state.former.empty()) {
        state.former[root] = Clock{};
      }
      take(at, buffer.space, buffer.offset, buffer.offset + buffer.type.bytes(), root.value());
      state.memory[root] = Memory::held;
    }
    state.access[i][lane] = now;
    uses_of(state, root)[lane] = now;
    if (state.writer[i] != at.global) {
      state.prior[i] = state.writer[i];
    }
    state.writer[i] = at.global;
  }
  const int64_t workspace = ctx_.program.kind(task).workspace;
  if (ctx_.planned && workspace > 0 && task.workspace >= 0) {
    take(at, program::workspace_space(task.lane), task.workspace, task.workspace + workspace,
         -1 - at.global);
  }
}

void Hazards::take(const Visit& at, program::Space space, int64_t begin, int64_t end,
                   int32_t owner) {
  // Keeps `arena` a set of disjoint ranges: ranges that overlap [begin, end) are cut down to the
  // rest outside, perhaps on both sides. Buffers of micro-batches reuse the same addresses, so the
  // exact fit is by far the most common case and comes first.
  auto& arena = state_[at.cls].arena[place_of(space)];
  auto range = arena.lower_bound(begin);
  if (range != arena.end() && range->first == begin && range->second.end == end) {
    if (range->second.owner != owner) {
      evict(at, range->second.owner, owner);
    }
    range->second.owner = owner;
    return;
  }
  if (range != arena.begin()) {
    auto left = std::prev(range);
    if (left->second.end > begin) {
      const Range old = left->second;
      evict(at, old.owner, owner);
      left->second.end = begin;
      if (old.end > end) {
        range = arena.emplace_hint(range, end, old);
      }
    }
  }
  while (range != arena.end() && range->first < end) {
    const Range old = range->second;
    if (old.owner != owner) {
      evict(at, old.owner, owner);
    }
    range = arena.erase(range);
    if (old.end > end) {
      range = arena.emplace_hint(range, end, old);
    }
  }
  arena.emplace_hint(range, begin, Range{end, owner});
}

void Hazards::evict(const Visit& at, int32_t owner, int32_t by) {
  // A workspace is in use while its own task runs, a buffer until the last access in every lane. A
  // later read of the buffer is refused when its task is visited (report_overwritten).
  const auto overlap = [&](int32_t earlier) {
    race(earlier, at.global,
         fmt::format("puts {} over {}", by < 0 ? "its workspace" : owner_name(at.cls, by),
                     owner_name(at.cls, owner)),
         "run the memory plan after the last change of tasks or dependencies");
  };
  ClassState& state = state_[at.cls];
  const auto note = [&](size_t lane, int32_t seen) {
    if (by >= 0 && !state.former.empty()) {
      state.former[by][lane] = std::max(state.former[by][lane], seen);
    }
  };
  if (owner < 0) {
    const int32_t user = -1 - owner;
    const size_t lane = ctx_.lane_of[user];
    note(lane, ctx_.position[user] + 1);
    if (ctx_.position[user] >= at.before[lane]) {
      overlap(user);
    }
    return;
  }
  state.memory[owner] = Memory::lost;
  const Clock& seen = uses_of(state, owner);
  for (size_t lane = 0; lane < seen.size(); ++lane) {
    note(lane, seen[lane]);
    if (seen[lane] > at.before[lane]) {
      overlap(last_in_lane(at.cls, lane, seen[lane]));
    }
  }
}

}  // namespace hocket::check

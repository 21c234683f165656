// SPDX-License-Identifier: Apache-2.0
#include "check/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "check/rules.h"

namespace hocket::check {
namespace {

using program::kNone;

std::string bad_ids(const Context& ctx, const RankClass& cls, const Task& t) {
  if (!in_range(t.kind, ctx.program.kinds.size())) return fmt::format("kind {}", t.kind);
  if (static_cast<int>(t.lane) >= program::kNumLanes) {
    return fmt::format("lane {}", static_cast<int>(t.lane));
  }
  for (const auto* list : {&t.in, &t.out}) {
    for (BufferId buffer_id : *list) {
      if (!in_range(buffer_id, cls.buffers.size())) return fmt::format("buffer {}", buffer_id);
    }
  }
  for (TaskId dep : t.deps) {
    if (!in_range(dep, cls.tasks.size())) return fmt::format("dependency on task {}", dep);
  }
  if (t.group != kNone && !in_range(t.group, ctx.program.groups.size())) {
    return fmt::format("group {}", t.group);
  }
  if (t.peer_axis != kNone && !in_range(t.peer_axis, ctx.program.mesh.axes.size())) {
    return fmt::format("peer axis {}", t.peer_axis);
  }
  return "";
}

std::string bad_workspace(const Context& ctx, const RankClass& cls, size_t t) {
  if (!ctx.planned) return "";
  const int64_t bytes = ctx.program.kind(cls.tasks[t]).workspace;
  const int64_t offset = cls.tasks[t].workspace;
  if (bytes == 0) return "";
  if (offset == kNone) return fmt::format("needs {} bytes of workspace but has none", bytes);
  if (offset < 0 || offset % 64 != 0 || offset > cls.arena_bytes || bytes > cls.arena_bytes) {
    return fmt::format("has {} bytes of workspace at {}, not a multiple of 64 in the arena", bytes,
                       offset);
  }
  if (offset + bytes > cls.arena_bytes) {
    return fmt::format("has a workspace that ends at {}, beyond the arena of {} bytes",
                       offset + bytes, cls.arena_bytes);
  }
  return "";
}

constexpr RuleInfo kIdsRule{"ids-in-range", "every id names something that exists"};
constexpr RuleInfo kOnceRule{"named-once",
                             "a class holds each named tensor (of a micro-batch) in one buffer"};
constexpr RuleInfo kWorkspaceRule{"workspace-planned",
                                  "the workspace of a task lies in the arena, at a multiple of 64"};

/// Pairs of buffers of a class that hold one named tensor.
std::vector<std::pair<BufferId, BufferId>> named_twice(const RankClass& cls) {
  std::vector<std::tuple<std::string_view, BufferKind, int32_t, BufferId>> names;
  for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
    if (cls.buffers[buffer].kind != BufferKind::step) {
      names.emplace_back(cls.buffers[buffer].name, cls.buffers[buffer].kind,
                         cls.buffers[buffer].micro_batch, buffer);
    }
  }
  std::sort(names.begin(), names.end());
  std::vector<std::pair<BufferId, BufferId>> twice;
  auto key = [](const auto& n) { return std::tie(std::get<0>(n), std::get<1>(n), std::get<2>(n)); };
  for (size_t i = 1; i < names.size(); ++i) {
    if (key(names[i]) == key(names[i - 1])) {
      twice.push_back({std::get<3>(names[i - 1]), std::get<3>(names[i])});
    }
  }
  return twice;
}

/// First task of a kind or group, to have something to name.
TaskRef user_of(const Context& ctx, const auto& uses) {
  for (size_t cls = 0; cls < ctx.program.classes.size(); ++cls) {
    const auto& tasks = ctx.program.classes[cls].tasks;
    for (size_t task = 0; task < tasks.size(); ++task) {
      if (uses(cls, tasks[task])) return {cls, task};
    }
  }
  return {};
}

void refuse(Context& ctx, const char* rule, TaskRef task, std::vector<TaskRef> related,
            const std::string& subject, const std::string& wrong, const char* fix) {
  ctx.report(rule, ProblemClass::structure, task, std::move(related), subject + " " + wrong, fix);
}

}  // namespace

std::vector<RuleInfo> structural_rules() {
  std::vector<RuleInfo> list{kIdsRule};
  const auto add = [&list](const auto& rules) {
    for (const auto& r : rules) {
      // A rule may look at kinds and at tasks.
      const bool known = std::any_of(list.begin(), list.end(), [&](const RuleInfo& other) {
        return std::string_view(other.name) == r.name;
      });
      if (!known) {
        list.push_back({r.name, r.says});
      }
    }
  };
  add(kind_rules());
  add(group_rules());
  add(class_rules());
  add(buffer_rules());
  add(task_rules());
  list.push_back(kOnceRule);
  list.push_back(kWorkspaceRule);
  return list;
}

bool check_rules(Context& ctx) {
  const Program& program = ctx.program;
  const int64_t before = ctx.problems.count;
  const size_t num_axes = program.mesh.axes.size();
  double ranks = 1;
  for (const graph::Axis& axis : program.mesh.axes) {
    ranks *= axis.size < 1 ? 1e9 : axis.size;
  }
  if (num_axes > kMaxAxes || ranks > 1 << 24 || program.num_micro_batches < 1) {
    refuse(ctx, kIdsRule.name, {}, {}, "the mesh",
           "has too many axes, an empty one, or too many ranks, "
           "or there is no micro-batch",
           "use at most 6 axes of at least one rank");
    return false;
  }
  for (size_t i = 0; i < program.classes.size(); ++i) {
    for (const auto& rule : class_rules()) {
      if (ctx.skips(rule.name)) continue;
      if (std::string text = rule.wrong(ctx, program.classes[i], i); !text.empty()) {
        refuse(ctx, rule.name, {static_cast<int32_t>(i), -1}, {}, fmt::format("class {}:", i), text,
               rule.fix);
      }
    }
  }
  if (ctx.problems.count != before) return false;

  for (size_t c = 0; c < program.classes.size(); ++c) {
    const RankClass& cls = program.classes[c];
    for (size_t t = 0; t < cls.tasks.size(); ++t) {
      if (std::string text = bad_ids(ctx, cls, cls.tasks[t]); !text.empty()) {
        refuse(ctx, kIdsRule.name, {c, t}, {}, fmt::format("task {} of class {}", t, c),
               "names a non-existing " + text, "name something that exists");
      }
    }
  }
  if (ctx.problems.count != before) return false;
  ctx.place();

  for (size_t i = 0; i < program.kinds.size(); ++i) {
    for (const auto& rule : kind_rules()) {
      if (ctx.skips(rule.name)) continue;
      std::string text = rule.wrong(ctx, program.kinds[i], ctx.kinds[i]);
      if (text.empty()) continue;
      const TaskRef user = user_of(
          ctx, [&](size_t, const Task& task) { return task.kind == static_cast<int32_t>(i); });
      if (user.cls < 0) {
        break;  // no task has this kind
      }
      refuse(ctx, rule.name, user, {}, ctx.name(user) + ":", text, rule.fix);
      break;
    }
  }
  for (size_t i = 0; i < program.groups.size(); ++i) {
    for (const auto& rule : group_rules()) {
      if (ctx.skips(rule.name)) continue;
      std::string text = rule.wrong(ctx, program.groups[i], i);
      if (text.empty()) continue;
      const TaskRef user = user_of(
          ctx, [&](size_t, const Task& task) { return task.group == static_cast<int32_t>(i); });
      if (user.cls < 0) break;
      refuse(ctx, rule.name, user, {}, fmt::format("group {} of {}", i, ctx.name(user)), text,
             rule.fix);
      break;
    }
  }
  if (ctx.problems.count != before) return false;

  for (size_t c = 0; c < program.classes.size(); ++c) {
    const RankClass& cls = program.classes[c];
    const ClassId ci = c;
    for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
      for (const auto& rule : buffer_rules()) {
        if (ctx.skips(rule.name)) continue;
        std::string text = rule.wrong(ctx, cls, cls.buffers[buffer]);
        if (text.empty()) continue;
        const int32_t bi = static_cast<int32_t>(buffer);
        const std::vector<TaskRef> users = ctx.users(ci, bi);
        const TaskRef user = users.empty() ? TaskRef{ci, -1} : users[0];
        refuse(ctx, rule.name, user, users,
               fmt::format("{}: {}", ctx.name(user), ctx.buffer_name(ci, bi)), text, rule.fix);
      }
    }
    for (auto [a, b] : named_twice(cls)) {
      std::vector<TaskRef> users = ctx.users(ci, a), others = ctx.users(ci, b);
      users.insert(users.begin() + (users.empty() ? 0 : 1), others.begin(), others.end());
      refuse(ctx, kOnceRule.name, users.empty() ? TaskRef{ci, -1} : users[0], users,
             fmt::format("class {}: {}", c, ctx.buffer_name(ci, a)), "has two buffers",
             "let all tasks use one buffer");
    }
    for (size_t task = 0; task < cls.tasks.size(); ++task) {
      const TaskRef ref{ci, task};
      for (const auto& rule : task_rules()) {
        if (ctx.skips(rule.name)) continue;
        std::string text = rule.wrong(ctx, ci, cls, cls.tasks[task]);
        if (text.empty()) continue;
        refuse(ctx, rule.name, ref, {}, ctx.name(ref), text, rule.fix);
        break;
      }
      if (std::string text = bad_workspace(ctx, cls, task); !text.empty()) {
        refuse(ctx, kWorkspaceRule.name, ref, {}, ctx.name(ref), text,
               "run the memory plan after the last change of tasks");
      }
    }
  }
  return ctx.problems.count == before;
}

}  // namespace hocket::check

// SPDX-License-Identifier: Apache-2.0
#include "check/rules/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "check/rules/rules.h"
#include "program/memory.h"

namespace hocket::check {
namespace {

using program::kNone;

/// Returns the fault of a table id: out of range, or of another role than the class. "": none.
std::string bad_table_id(const Context& ctx, const RankClass& cls, program::TableId id) {
  if (id == kNone) return "";
  if (!in_range(id, ctx.program.tables.size())) return fmt::format("table {}", id);
  if (ctx.program.tables[id].role == cls.role) return "";
  return fmt::format("table {} of the class's role", id);
}

std::string bad_ids(const Context& ctx, const RankClass& cls, const Task& task) {
  if (!in_range(task.kind, ctx.program.kinds.size())) return fmt::format("kind {}", task.kind);
  if (static_cast<int>(task.lane) >= program::kNumLanes) {
    return fmt::format("lane {}", static_cast<int>(task.lane));
  }
  for (const auto* list : {&task.in, &task.out}) {
    for (BufferId buffer_id : *list) {
      if (!in_range(buffer_id, cls.buffers.size())) return fmt::format("buffer {}", buffer_id);
    }
  }
  for (TaskId dep : task.deps) {
    if (!in_range(dep, cls.tasks.size())) return fmt::format("dependency on task {}", dep);
  }
  for (const program::PieceOffset& begin : task.piece_offsets) {
    if (const std::string table = bad_table_id(ctx, cls, begin.by); !table.empty()) return table;
  }
  if (task.group != kNone && !in_range(task.group, ctx.program.groups.size())) {
    return fmt::format("group {}", task.group);
  }
  if (task.peer_axis != kNone &&
      !in_range(task.peer_axis, ctx.program.roles[cls.role].mesh.axes.size())) {
    return fmt::format("peer axis {}", task.peer_axis);
  }
  return bad_table_id(ctx, cls, task.peer_by);
}

std::string bad_ids(const Context& ctx, const RankClass& cls, size_t place) {
  const program::Buffer& buffer = cls.buffers[place];
  if (buffer.base != kNone && !in_range(buffer.base, cls.buffers.size())) {
    return fmt::format("base {}", buffer.base);
  }
  if (place_of(buffer.space) >= program::kNumSpaces) {
    return fmt::format("space {}", place_of(buffer.space));
  }
  return bad_table_id(ctx, cls, buffer.by);
}

/// Returns the fault of a table, which all later look-ups rely on; "": none.
std::string bad_table(const Context& ctx, const program::Table& table) {
  if (!in_range(table.role, ctx.program.roles.size()))
    return fmt::format("has role {}", table.role);
  const std::vector<graph::Axis>& axes = ctx.program.roles[table.role].mesh.axes;
  int64_t want = 1;
  int32_t before = -1;
  for (int32_t axis : table.axes) {
    if (!in_range(axis, axes.size())) return fmt::format("has axis {}", axis);
    if (axis <= before) return "has axes that are not in mesh order";
    before = axis;
    want *= axes[axis].size;
  }
  if (std::cmp_not_equal(table.values.size(), want)) {
    return fmt::format("has {} numbers for {} coordinates", table.values.size(), want);
  }
  const auto far =
      std::find_if(table.values.begin(), table.values.end(), program::is_offset_too_large);
  return far == table.values.end() ? "" : fmt::format("has the number {}", *far);
}

std::string bad_workspace(const Context& ctx, const RankClass& cls, const Task& task) {
  if (!ctx.planned) return "";
  const int64_t bytes = ctx.program.kind(task).workspace;
  const int64_t offset = task.workspace;
  if (program::is_communication(ctx.program.kind(task))) {
    return offset == kNone ? "" : "has a workspace in the arena, and is no kernel";
  }
  if (bytes == 0) return "";
  if (offset == kNone) return fmt::format("needs {} bytes of workspace but has none", bytes);
  const int64_t arena = cls.arena(program::workspace_space(task.lane));
  if (offset < 0 || offset % 64 != 0 || offset > arena || bytes > arena) {
    return fmt::format("has {} bytes of workspace at {}, not a multiple of 64 in the arena", bytes,
                       offset);
  }
  if (bytes > arena - offset) {
    return fmt::format("has a workspace of {} bytes at {}, beyond the arena of {} bytes", bytes,
                       offset, arena);
  }
  return "";
}

constexpr RuleInfo kIdsRule{"ids-in-range", "every id names something that exists"};
constexpr RuleInfo kTableRule{"table-fits",
                              "a table has a number for every coordinate on axes of its role, none "
                              "further than 2^50 from 0"};
constexpr RuleInfo kBoxesRule{"class-boxes",
                              "every rank lies in the box of exactly one class of its role"};
constexpr RuleInfo kOnceRule{"named-once",
                             "a class holds each named tensor (of a micro-batch) in one buffer"};
constexpr RuleInfo kWorkspaceRule{
    "workspace-planned",
    "the workspace of a task lies in the arena of the memory where it works, at "
    "a multiple of 64"};

/// Returns pairs of buffers of a class that hold one named tensor.
std::vector<std::pair<BufferId, BufferId>> named_twice(const RankClass& cls) {
  std::vector<std::tuple<std::string_view, BufferKind, int32_t, BufferId>> names;
  for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
    if (!cls.buffers[buffer].name.empty()) {
      names.emplace_back(cls.buffers[buffer].name, cls.buffers[buffer].kind,
                         cls.buffers[buffer].micro_batch, buffer);
    }
  }
  std::sort(names.begin(), names.end());
  std::vector<std::pair<BufferId, BufferId>> twice;
  const auto key = [](const auto& entry) {
    return std::tie(std::get<0>(entry), std::get<1>(entry), std::get<2>(entry));
  };
  for (size_t i = 1; i < names.size(); ++i) {
    if (key(names[i]) == key(names[i - 1])) {
      twice.push_back({std::get<3>(names[i - 1]), std::get<3>(names[i])});
    }
  }
  return twice;
}

/// Returns the first task that uses a kind or group, to name it in a text.
TaskRef user_of(const Context& ctx, const auto& uses) {
  for (size_t cls = 0; cls < ctx.program.classes.size(); ++cls) {
    const auto& tasks = ctx.program.classes[cls].tasks;
    for (size_t task = 0; task < tasks.size(); ++task) {
      if (uses(tasks[task])) return {cls, task};
    }
  }
  return {};
}

void refuse(Context& ctx, const char* rule, TaskRef task, std::vector<TaskRef> related,
            const std::string& subject, const std::string& wrong, const char* fix) {
  ctx.report(rule, ProblemClass::structure, task, std::move(related), subject + " " + wrong, fix);
}

/// Returns false for an invalid mesh even if the rule is skipped: nothing else can handle one.
bool check_mesh(Context& ctx) {
  const Program& program = ctx.program;
  double ranks = 0;
  size_t axes = 0;
  size_t all_axes = 0;
  for (const program::Role& role : program.roles) {
    double of_role = 1;
    for (const graph::Axis& axis : role.mesh.axes) {
      of_role *= axis.size < 1 ? 1e9 : axis.size;
    }
    ranks += of_role;
    axes = std::max(axes, role.mesh.axes.size());
    all_axes += role.mesh.axes.size();
  }
  if (!program.roles.empty() && axes <= graph::kMaxAxes && all_axes <= graph::kMaxCutAxes &&
      ranks <= 1 << 24 && program.num_micro_batches >= 1) {
    return true;
  }
  refuse(ctx, kIdsRule.name, {}, {}, "the mesh of a role",
         "has too many axes, an empty one, or too many ranks, or there is no micro-batch",
         "give every role at most 12 axes of at least one rank, and all together at most 32");
  return false;
}

/// Returns false for invalid boxes even if the rule is skipped, like check_mesh.
bool check_boxes(Context& ctx) {
  const std::string wrong = ctx.program.bad_placement();
  if (wrong.empty()) return true;
  refuse(ctx, kBoxesRule.name, {}, {},
         "the boxes of the classes are no partition of the ranks:", wrong,
         "give the classes of a role boxes that hold each of its ranks once");
  return false;
}

void check_classes(Context& ctx) {
  for (size_t i = 0; i < ctx.program.classes.size(); ++i) {
    for (const auto& rule : class_rules()) {
      if (ctx.skips(rule.name)) continue;
      const std::string text = rule.wrong(ctx, ctx.program.classes[i], i);
      if (text.empty()) continue;
      refuse(ctx, rule.name, {static_cast<int32_t>(i), -1}, {}, fmt::format("class {}:", i), text,
             rule.fix);
    }
  }
}

void check_ids(Context& ctx) {
  for (size_t i = 0; i < ctx.program.tables.size(); ++i) {
    const std::string text = bad_table(ctx, ctx.program.tables[i]);
    if (text.empty()) continue;
    refuse(ctx, kTableRule.name, {}, {}, fmt::format("table {}", i), text,
           "give a number for every coordinate on its axes, at which something may begin");
  }
  for (size_t c = 0; c < ctx.program.classes.size(); ++c) {
    const RankClass& cls = ctx.program.classes[c];
    for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
      const std::string text = bad_ids(ctx, cls, buffer);
      if (text.empty()) continue;
      refuse(ctx, kIdsRule.name, {c, kNone}, {}, fmt::format("buffer {} of class {}", buffer, c),
             "names a non-existing " + text, "name something that exists");
    }
    for (size_t task = 0; task < cls.tasks.size(); ++task) {
      const std::string text = bad_ids(ctx, cls, cls.tasks[task]);
      if (text.empty()) continue;
      refuse(ctx, kIdsRule.name, {c, task}, {}, fmt::format("task {} of class {}", task, c),
             "names a non-existing " + text, "name something that exists");
    }
  }
}

/// Refuses kinds that a task uses. Only the first broken rule of a kind is reported.
void check_kinds(Context& ctx) {
  for (size_t i = 0; i < ctx.program.kinds.size(); ++i) {
    for (const auto& rule : kind_rules()) {
      if (ctx.skips(rule.name)) continue;
      const std::string text = rule.wrong(ctx, ctx.program.kinds[i], ctx.kinds[i]);
      if (text.empty()) continue;
      const TaskRef user =
          user_of(ctx, [&](const Task& task) { return task.kind == static_cast<int32_t>(i); });
      if (user.cls < 0) break;
      refuse(ctx, rule.name, user, {}, ctx.name(user) + ":", text, rule.fix);
      break;
    }
  }
}

void check_groups(Context& ctx) {
  for (size_t i = 0; i < ctx.program.groups.size(); ++i) {
    for (const auto& rule : group_rules()) {
      if (ctx.skips(rule.name)) continue;
      const std::string text = rule.wrong(ctx, ctx.program.groups[i], i);
      if (text.empty()) continue;
      const TaskRef user =
          user_of(ctx, [&](const Task& task) { return task.group == static_cast<int32_t>(i); });
      if (user.cls < 0) break;
      refuse(ctx, rule.name, user, {}, fmt::format("group {} of {}", i, ctx.name(user)), text,
             rule.fix);
      break;
    }
  }
}

/// Reports faults of a buffer at the first task that uses it.
template <class Rules>
void check_each_buffer(Context& ctx, ClassId cls, const Rules& rules) {
  const RankClass& rank_class = ctx.program.classes[cls];
  for (size_t i = 0; i < rank_class.buffers.size(); ++i) {
    const BufferId buffer = i;
    for (const auto& rule : rules) {
      if (ctx.skips(rule.name)) continue;
      const std::string text = rule.wrong(ctx, rank_class, rank_class.buffers[i]);
      if (text.empty()) continue;
      const std::vector<TaskRef> users = ctx.users(cls, buffer);
      const TaskRef user = users.empty() ? TaskRef{cls, -1} : users[0];
      refuse(ctx, rule.name, user, users,
             fmt::format("{}: {}", ctx.name(user), ctx.buffer_name(cls, buffer)), text, rule.fix);
      break;
    }
  }
}

void check_buffers(Context& ctx, ClassId cls) {
  const RankClass& rank_class = ctx.program.classes[cls];
  check_each_buffer(ctx, cls, buffer_rules());
  for (auto [first, second] : named_twice(rank_class)) {
    std::vector<TaskRef> users = ctx.users(cls, first);
    const std::vector<TaskRef> others = ctx.users(cls, second);
    users.insert(users.begin() + (users.empty() ? 0 : 1), others.begin(), others.end());
    refuse(ctx, kOnceRule.name, users.empty() ? TaskRef{cls, -1} : users[0], users,
           fmt::format("class {}: {}", cls, ctx.buffer_name(cls, first)), "has two buffers",
           "let all tasks use one buffer");
  }
}

/// Reports only the first broken rule of a task, since later rules rely on earlier ones.
void check_tasks(Context& ctx, ClassId cls) {
  const RankClass& rank_class = ctx.program.classes[cls];
  for (size_t task = 0; task < rank_class.tasks.size(); ++task) {
    const TaskRef ref{cls, task};
    for (const auto& rule : task_rules()) {
      if (ctx.skips(rule.name)) continue;
      const std::string text = rule.wrong(ctx, cls, rank_class, rank_class.tasks[task]);
      if (text.empty()) continue;
      refuse(ctx, rule.name, ref, {}, ctx.name(ref), text, rule.fix);
      break;
    }
    const std::string text = bad_workspace(ctx, rank_class, rank_class.tasks[task]);
    if (!text.empty()) {
      refuse(ctx, kWorkspaceRule.name, ref, {}, ctx.name(ref), text,
             "run the memory plan after the last change of tasks");
    }
  }
}

}  // namespace

std::vector<RuleInfo> structural_rules() {
  std::vector<RuleInfo> list{kIdsRule, kBoxesRule, kTableRule};
  const auto add = [&list](const auto& rules) {
    for (const auto& rule : rules) {
      // One rule may have a row for kinds and a row for tasks.
      const bool known = std::any_of(list.begin(), list.end(), [&](const RuleInfo& other) {
        return std::string_view(other.name) == rule.name;
      });
      if (!known) {
        list.push_back({rule.name, rule.says});
      }
    }
  };
  add(kind_rules());
  add(group_rules());
  add(class_rules());
  add(view_rules());
  add(buffer_rules());
  add(task_rules());
  list.push_back(kOnceRule);
  list.push_back(kWorkspaceRule);
  return list;
}

bool check_rules(Context& ctx) {
  // Every step relies on the ones before, so each must pass before the next one runs: mesh and
  // classes, ids (needed to name any task), views, kinds and groups, then buffers and tasks.
  const int64_t before = ctx.problems.count;
  const auto clean = [&] { return ctx.problems.count == before; };
  if (!check_mesh(ctx) || !check_boxes(ctx)) return false;
  check_classes(ctx);
  if (!clean()) return false;
  check_ids(ctx);
  if (!clean()) return false;
  for (size_t cls = 0; cls < ctx.program.classes.size(); ++cls) {
    check_each_buffer(ctx, static_cast<int32_t>(cls), view_rules());
  }
  if (!clean()) return false;
  ctx.index_tasks();
  check_kinds(ctx);
  check_groups(ctx);
  if (!clean()) return false;
  for (size_t cls = 0; cls < ctx.program.classes.size(); ++cls) {
    check_buffers(ctx, static_cast<int32_t>(cls));
    check_tasks(ctx, static_cast<int32_t>(cls));
  }
  return clean();
}

}  // namespace hocket::check

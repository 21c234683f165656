// SPDX-License-Identifier: Apache-2.0
#include "check/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "check/rules/rules.h"
#include "check/values/held.h"
#include "program/buffer_contents.h"

namespace hocket::check {
namespace {

using program::Lane;

constexpr uint32_t bit(Lane lane) { return 1u << static_cast<int>(lane); }

OpClass class_of(std::string_view op) {
  const ops::Op* const rules = ops::find_or_null(op);
  if (!rules) return OpClass::unknown;
  if (rules->codec.name) {
    return rules->codec.role == ops::Codec::Role::encode ? OpClass::encode : OpClass::decode;
  }
  switch (rules->meaning) {
    case Meaning::sum:
      return OpClass::add;
    case Meaning::identity:
      return OpClass::copy;
    case Meaning::empty:
      return OpClass::zero;
    case Meaning::merge_softmax:
    case Meaning::merge_max:
      return OpClass::merge;
    case Meaning::regroup:
      return OpClass::regroup;
    case Meaning::uninterpreted:
      break;
  }
  return OpClass::compute;
}

uint32_t lanes_of(const KindInfo& info) {
  if (info.op_class == OpClass::unknown) return 0;
  if (info.comm) {
    uint32_t lanes = 0;
    for (const program::Order order : {program::Order::messages, program::Order::collectives}) {
      for (const bool leaves_node : {false, true}) {
        lanes |= bit(program::link_lane(info.comm->role, leaves_node, order));
      }
    }
    return lanes;
  }
  // Local ops of a decomposed all-reduce may run in the lanes in which its messages arrive.
  const uint32_t arrive = bit(Lane::intra_rx) | bit(Lane::inter_rx);
  // The host may encode for links, and add up arriving values.
  const bool is_codec = info.rules && info.rules->codec.name;
  switch (info.op_class) {
    case OpClass::copy:
    case OpClass::zero:
      return bit(Lane::compute) | bit(Lane::h2d) | bit(Lane::d2h) | bit(Lane::host) | arrive;
    case OpClass::add:
      return bit(Lane::compute) | bit(Lane::host) | arrive;
    case OpClass::merge:
      return bit(Lane::compute) | arrive;
    default:
      return bit(Lane::compute) | (is_codec ? bit(Lane::host) : 0);
  }
}

/// Looks up a kind's rules. Numbers of operands may be wrong here, so absent operands are skipped.
KindInfo kind_info(const program::Kind& kind, TypeTable& types, OpKeys& keys) {
  // A collective that sums a list may run in place; an op of src/ops names its in-place outputs.
  KindInfo info;
  if (const comm::Id id = comm::find(kind.op); id != comm::Id::none) {
    info.comm = &comm::op(id);
  }
  info.op_class = info.comm ? OpClass::communication : class_of(kind.op);
  if (is_local(info)) {
    info.rules = ops::find_or_null(kind.op);
    info.key = keys.intern(kind.op, kind.attrs);
  }
  info.lanes = lanes_of(info);
  for (const auto& type : kind.in) {
    info.in.push_back(types.intern(type));
  }
  for (const auto& type : kind.out) {
    info.out.push_back(types.intern(type));
  }
  info.shares.assign(kind.out.size(), -1);
  info.overwrites.assign(kind.out.size(), -1);
  if (info.comm && info.comm->in_place) {
    for (size_t i = 0; i < kind.out.size(); ++i) {
      info.shares[i] = static_cast<int32_t>(i);
    }
  }
  if (info.rules) {
    for (auto [in, out] : info.rules->inplace) {
      if (static_cast<size_t>(out) < kind.out.size()) {
        info.shares[out] = static_cast<int32_t>(in);
      }
    }
  }
  if (info.rules) {
    for (auto [in, out] : info.rules->may_overwrite) {
      if (static_cast<size_t>(out) < kind.out.size()) {
        info.overwrites[out] = static_cast<int32_t>(in);
      }
    }
  }
  return info;
}

/// Requires: the classes are a partition of the ranks. The group's ids may be wrong here, so absent
/// ones are skipped (group-axes refuses them).
GroupInfo group_info(const Program& program, const program::Group& group) {
  GroupInfo info;
  if (!in_range(group.role, program.roles.size())) return info;
  if (group.with != program::kNone && !in_range(group.with, program.roles.size())) return info;
  const auto& axes = program.roles[group.role].mesh.axes;
  for (int32_t axis : group.axes) {
    if (!in_range(axis, axes.size())) return info;
    if (axes[axis].size > 1) {
      info.axes.push_back(axis);
    }
  }
  info.ranks = program.size_of(group);
  info.meetings = program.meetings(group);
  return info;
}

graph::Mesh all_meshes(const Program& program) {
  graph::Mesh all;
  for (const program::Role& role : program.roles) {
    for (const graph::Axis& axis : role.mesh.axes) {
      all.axes.push_back(axis);
      if (program.roles.size() > 1) {
        all.axes.back().name = fmt::format("{}.{}", role.name, axis.name);
      }
    }
  }
  return all;
}

/// Returns whether any buffer has an offset: then all must have one (buffer-planned).
bool has_offsets(const Program& program) {
  for (const RankClass& cls : program.classes) {
    if (cls.arena_bytes > 0 || cls.host_arena_bytes > 0) return true;
    for (const program::Buffer& buffer : cls.buffers) {
      if (buffer.kind == BufferKind::step && buffer.offset != program::kNone) return true;
    }
  }
  return false;
}

bool is_rule(std::string_view name) {
  static const std::set<std::string_view> names = [] {
    std::set<std::string_view> all;
    for (const RuleInfo& rule : rules()) {
      all.insert(rule.name);
    }
    return all;
  }();
  return names.contains(name);
}

}  // namespace

void Problems::add(Problem problem) {
  ++count;
  if (!full()) {
    list.push_back(std::move(problem));
  }
}

Context::Context(const Program& checked, const CheckOptions& check_options, TypeTable& type_table,
                 OpKeys& op_keys, Problems& found)
    : program(checked),
      options(check_options),
      types(type_table),
      keys(op_keys),
      problems(found),
      mesh(all_meshes(checked)),
      peer_maps(checked) {
  int32_t axes = 0;
  for (const program::Role& role : program.roles) {
    first_axis.push_back(axes);
    axes += static_cast<int32_t>(role.mesh.axes.size());
  }
  planned = has_offsets(program);
  for (const program::Kind& kind : program.kinds) {
    kinds.push_back(kind_info(kind, types, keys));
  }
}

void Context::index_tasks() {
  // Global task indices are dense (class 0, then class 1, in issue order), so data per task are
  // flat vectors. A lane is a subsequence of a class's tasks.
  for (const program::Group& group : program.groups) {
    groups.push_back(group_info(program, group));
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    graph::CoordBox& box = boxes.emplace_back();
    box.count.fill(1);
    for (size_t axis = 0; axis < program.mesh_of(cls).axes.size(); ++axis) {
      const program::Interval on = program.span(cls, static_cast<int32_t>(axis));
      const size_t place = static_cast<size_t>(axis_of(cls, static_cast<int32_t>(axis)));
      box.begin[place] = on.begin;
      box.count[place] = on.count;
    }
  }
  size_t total = 0;
  for (const RankClass& cls : program.classes) {
    total += cls.tasks.size();
  }
  position.resize(total);
  task_class.resize(total);
  lane_of.resize(total);
  lanes.resize(program.classes.size());
  buffer_type.resize(program.classes.size());
  size_t global = 0;
  for (size_t c = 0; c < program.classes.size(); ++c) {
    first_task.push_back(static_cast<int32_t>(global));
    const RankClass& cls = program.classes[c];
    for (size_t task = 0; task < cls.tasks.size(); ++task, ++global) {
      const size_t lane = static_cast<size_t>(cls.tasks[task].lane);
      position[global] = static_cast<int32_t>(lanes[c][lane].size());
      task_class[global] = static_cast<int32_t>(c);
      lane_of[global] = static_cast<uint8_t>(lane);
      lanes[c][lane].push_back(task);
    }
    views.emplace_back(program, c);
    buffer_type[c].reserve(cls.buffers.size());
    for (const program::Buffer& buffer : cls.buffers) {
      buffer_type[c].push_back(types.intern(buffer.type));
    }
  }
}

graph::Coords Context::coords_of(int32_t rank) const {
  graph::Coords at{};
  const std::vector<int32_t> coords = program.coords(rank);
  std::copy(coords.begin(), coords.end(), at.begin() + first_axis[program.role_of(rank)]);
  return at;
}

int32_t Context::rank_at(program::RoleId role, const graph::Coords& at) const {
  const graph::Mesh& axes = program.roles[role].mesh;
  const auto first = at.begin() + first_axis[role];
  return program.first_rank(role) + axes.rank({first, first + std::ssize(axes.axes)});
}

int64_t Context::begin_at(program::RoleId role, const program::PieceOffset& begin,
                          const graph::Coords& at) const {
  const size_t axes = program.roles[role].mesh.axes.size();
  const size_t first = static_cast<size_t>(first_axis[role]);
  return program.begin_at(begin.begin, begin.by, std::span(at).subspan(first, axes));
}

graph::AxisMask Context::role_axes(program::RoleId role) const {
  graph::AxisMask axes = 0;
  for (size_t axis = 0; axis < program.roles[role].mesh.axes.size(); ++axis) {
    axes |= graph::axis_bit(first_axis[role] + static_cast<int32_t>(axis));
  }
  return axes;
}

graph::AxisMask Context::group_axes(const Task& task) const {
  graph::AxisMask axes = 0;
  for (int32_t axis : groups[task.group].axes) {
    axes |= graph::axis_bit(first_axis[program.groups[task.group].role] + axis);
  }
  return axes;
}

graph::AxisMask Context::table_axes(ClassId cls, program::TableId table) const {
  graph::AxisMask axes = 0;
  if (table == program::kNone) return axes;
  for (int32_t axis : program.tables[table].axes) {
    const int32_t place = axis_of(cls, axis);
    if (mesh.axes[static_cast<size_t>(place)].size > 1) {
      axes |= graph::axis_bit(place);
    }
  }
  return axes;
}

BufferId Context::first_view(ClassId cls, BufferId base) const {
  first_views_.resize(program.classes.size());
  std::vector<BufferId>& first = first_views_[cls];
  const auto& buffers = program.classes[cls].buffers;
  if (first.empty()) {
    first.assign(buffers.size(), kNone);
    for (size_t id = buffers.size(); id-- > 0;) {
      const BufferId of = buffers[id].base;
      if (buffers[id].kind == program::BufferKind::view && of >= 0 && of < buffers.size()) {
        first[of] = id;
      }
    }
  }
  return first[base];
}

bool Context::leaves_node(ClassId cls, const Task& task) const {
  const auto [known, fresh] = leaves_node_.try_emplace({cls, task.group, task.peer_map()});
  if (fresh) {
    known->second = task.group != program::kNone
                        ? program.leaves_node(program.groups[task.group], cls)
                        : program.leaves_node(task.peer_map(), cls);
  }
  return known->second;
}

std::string Context::ranks_text(ClassId cls) const {
  const std::vector<int32_t> ranks = program.ranks_of(cls);
  if (ranks.empty()) return "no ranks";
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const bool dense = ranks.back() - ranks.front() + 1 == static_cast<int32_t>(ranks.size());
  if (dense) return fmt::format("ranks {}-{}", ranks.front(), ranks.back());
  std::string text = "ranks ";
  for (size_t i = 0; i < ranks.size() && i < 8; ++i) {
    text += fmt::format("{}{}", i ? "," : "", ranks[i]);
  }
  return ranks.size() > 8 ? text + ",.." : text;
}

bool Context::covers(const graph::Tensor& tensor, const std::vector<Holder>& holders) const {
  std::vector<Holder> alone;
  for (const Holder& holder : holders) {
    if (holder.buffer->slots.empty()) {
      alone.push_back(holder);
    }
  }
  if (covers_in_one_layout(alone)) return true;
  return alone.size() < holders.size() && covers_elements(tensor, holders);
}

std::vector<graph::Run> Context::elements_of(const graph::Tensor& tensor,
                                             const std::vector<Holder>& holders) const {
  std::vector<graph::Run> held;
  for (const Holder& holder : holders) {
    for (int32_t rank : program.ranks_of(holder.cls)) {
      program::for_each_run(*holder.buffer, tensor.name, tensor.type, program, rank,
                            [&](int64_t begin, int64_t count, int64_t) {
                              held.push_back({begin, count});
                            });
    }
    held = graph::united(std::move(held));
  }
  return held;
}

bool Context::covers_elements(const graph::Tensor& tensor,
                              const std::vector<Holder>& holders) const {
  const std::vector<graph::Run> held = elements_of(tensor, holders);
  return held.size() == 1 && held[0] == graph::Run{0, tensor.type.numel()};
}

std::string Context::uncovered(const graph::Tensor& tensor,
                               const std::vector<Holder>& holders) const {
  const int64_t size = tensor.type.numel();
  return fmt::format("elements {} of {} are on no rank",
                     runs_text(graph::gaps_in(elements_of(tensor, holders), {0, size})), size);
}

bool Context::covers_in_one_layout(const std::vector<Holder>& holders) const {
  // Parts differ along the axes on which the tensor is not replicated. Every choice of coordinates
  // on these must lie in the box of some class.
  for (const Holder& first : holders) {
    const auto& axes = program.mesh_of(first.cls).axes;
    std::set<std::vector<int32_t>> parts;
    size_t wanted = 1;
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      wanted *=
          first.buffer->layout[axis].is_replicate() ? 1 : static_cast<size_t>(axes[axis].size);
    }
    for (const Holder& holder : holders) {
      if (holder.buffer->layout != first.buffer->layout ||
          program.classes[holder.cls].role != program.classes[first.cls].role) {
        continue;
      }
      std::vector<std::vector<int32_t>> list{{}};
      size_t whole = 1;
      for (size_t axis = 0; axis < axes.size(); ++axis) {
        if (first.buffer->layout[axis].is_replicate()) continue;
        whole *= static_cast<size_t>(program.span(holder.cls, static_cast<int32_t>(axis)).count);
      }
      if (whole == wanted) return true;
      for (size_t axis = 0; axis < axes.size(); ++axis) {
        if (first.buffer->layout[axis].is_replicate()) continue;
        const program::Interval on = program.span(holder.cls, static_cast<int32_t>(axis));
        std::vector<std::vector<int32_t>> next;
        for (const std::vector<int32_t>& part : list) {
          for (int32_t at = on.begin; at < on.end(); ++at) {
            next.push_back(part);
            next.back().push_back(at);
          }
        }
        list = std::move(next);
      }
      parts.insert(list.begin(), list.end());
    }
    if (parts.size() == wanted) return true;
  }
  return false;
}

std::vector<TaskRef> Context::users(ClassId cls, BufferId buffer, size_t at_most) const {
  // A base that no task uses whole is used through its views.
  std::vector<TaskRef> list;
  const program::RankClass& rank_class = program.classes[cls];
  const auto find = [&](const auto& is_it) {
    for (size_t i = 0; i < rank_class.tasks.size() && list.size() < at_most; ++i) {
      const program::Task& task = rank_class.tasks[i];
      if (std::any_of(task.in.begin(), task.in.end(), is_it) ||
          std::any_of(task.out.begin(), task.out.end(), is_it)) {
        list.push_back({cls, i});
      }
    }
  };
  find([&](BufferId operand) { return operand == buffer; });
  if (!list.empty()) return list;
  find([&](BufferId operand) {
    const bool exists = operand >= 0 && operand < std::ssize(rank_class.buffers);
    return exists && rank_class.buffers[operand].base == buffer;
  });
  return list;
}

std::string Context::name(TaskRef ref) const {
  if (ref.cls < 0) return "the program";
  if (ref.task < 0) return fmt::format("class {} ({})", ref.cls, ranks_text(ref.cls));
  std::string text = program::task_name(program, ref.cls, ref.task);
  if (program.classes.size() > 1) {
    text += fmt::format(" of class {}", ref.cls);
  }
  return text;
}

std::string Context::buffer_name(ClassId cls, BufferId buffer_id) const {
  const program::Buffer& buffer = program.classes[cls].buffers[buffer_id];
  if (buffer.kind == BufferKind::step) {
    return fmt::format("buffer {} ({})", buffer_id, graph::to_string(buffer.type));
  }
  if (buffer.kind == BufferKind::view) {
    const std::string view = fmt::format("view {} ({})", buffer_id, graph::to_string(buffer.type));
    // In a malformed program, a view may have no base, or be a view of a view, or of itself.
    if (buffer.base == kNone) return view;
    const bool of_view = program.classes[cls].buffers[buffer.base].kind == BufferKind::view;
    return fmt::format(
        "{} of {}", view,
        of_view ? fmt::format("view {}", buffer.base) : buffer_name(cls, buffer.base));
  }
  std::string text = fmt::format("{} '{}'", program::to_string(buffer.kind), buffer.name);
  if (buffer.micro_batch >= 0) {
    text += fmt::format(" of micro-batch {}", buffer.micro_batch);
  }
  return text;
}

void Context::report(const char* rule, ProblemClass problem_class, TaskRef task,
                     std::vector<TaskRef> related, std::string text, std::string fix,
                     std::string where) {
  // Beyond the limit, problems are only counted.
  HOCKET_CHECK(is_rule(rule), "the rule {} is in no list; add it to derived_rules", rule);
  if (skips(rule)) return;
  if (problems.full()) {
    ++problems.count;
    return;
  }
  Problem problem;
  problem.rule = rule;
  problem.problem_class = problem_class;
  problem.task = task;
  for (const TaskRef& ref : related) {
    if (!(ref == task) &&
        std::find(problem.related.begin(), problem.related.end(), ref) == problem.related.end()) {
      problem.related.push_back(ref);
    }
  }
  if (task.cls >= 0 && static_cast<size_t>(task.cls) < program.classes.size()) {
    problem.ranks = program.ranks_of(task.cls);
  }
  for (const TaskRef& ref : problem.related) {
    if (ref.cls != task.cls) {
      for (int32_t rank : program.ranks_of(ref.cls)) {
        problem.ranks.push_back(rank);
      }
    }
  }
  std::sort(problem.ranks.begin(), problem.ranks.end());
  problem.ranks.erase(std::unique(problem.ranks.begin(), problem.ranks.end()), problem.ranks.end());
  problem.text = std::move(text);
  problem.fix = std::move(fix);
  problem.where = std::move(where);
  problems.add(std::move(problem));
}

}  // namespace hocket::check

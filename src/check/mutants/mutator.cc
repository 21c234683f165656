// SPDX-License-Identifier: Apache-2.0
#include "check/mutants/mutator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace hocket::check {

void collect_users(const RankClass& rank_class, ClassId cls, const std::vector<BufferId>& buffers,
                   std::set<TaskRef>* to) {
  for (size_t i = 0; i < rank_class.tasks.size(); ++i) {
    for (const auto* list : {&rank_class.tasks[i].in, &rank_class.tasks[i].out}) {
      for (BufferId buffer : *list) {
        if (std::find(buffers.begin(), buffers.end(), buffer) != buffers.end()) {
          to->insert({cls, i});
        }
      }
    }
  }
}

/// Returns the buffers, and all others in the same memory: views and their bases.
static std::vector<BufferId> with_views(const RankClass& rank_class,
                                        std::vector<BufferId> buffers) {
  std::set<BufferId> roots;
  for (BufferId buffer : buffers) {
    roots.insert(rank_class.root(buffer));
  }
  for (size_t id = 0; id < rank_class.buffers.size(); ++id) {
    if (rank_class.buffers[id].kind == BufferKind::view && roots.contains(rank_class.root(id))) {
      buffers.push_back(id);
    }
  }
  buffers.insert(buffers.end(), roots.begin(), roots.end());
  return buffers;
}

/// Returns whether ranks of class `cls` send to, or receive from, ranks of class `other` in this
/// task.
static bool sends_to(const Program& program, const Task& task, ClassId cls, ClassId other) {
  const std::vector<ClassId> peers = program.peer_classes(cls, task.peer_map());
  return std::find(peers.begin(), peers.end(), other) != peers.end();
}

void collect_neighbours(const Program& program, TaskRef ref, std::set<TaskRef>* to) {
  const RankClass& rank_class = program.classes[ref.cls];
  const Task& task = rank_class.tasks[ref.task];
  to->insert(ref);
  std::vector<BufferId> buffers = task.in;
  buffers.insert(buffers.end(), task.out.begin(), task.out.end());
  collect_users(rank_class, ref.cls, with_views(rank_class, std::move(buffers)), to);
  for (TaskId dep : task.deps) {
    to->insert({ref.cls, dep});
  }
  // A lane is a chain of edges, so neighbours in the lane are connected.
  TaskId before = kNone;
  TaskId after = kNone;
  for (TaskId task_id = 0; task_id < rank_class.tasks.size(); ++task_id) {
    const Task& other = rank_class.tasks[task_id];
    for (TaskId dep : other.deps) {
      if (dep == ref.task) {
        to->insert({ref.cls, task_id});
      }
    }
    if (other.lane != task.lane) continue;
    if (task_id < ref.task) {
      before = task_id;
    }
    if (task_id > ref.task && after == kNone) {
      after = task_id;
    }
  }
  for (TaskId task_id : {before, after}) {
    if (task_id != kNone) {
      to->insert({ref.cls, task_id});
    }
  }
  for (size_t k = 0; k < program.classes.size(); ++k) {
    const ClassId cls = k;
    for (size_t i = 0; i < program.classes[k].tasks.size(); ++i) {
      const Task& other = program.classes[k].tasks[i];
      const bool message = task.tag != kNone && other.tag == task.tag &&
                           other.peer_axis == task.peer_axis && other.peer_axis != kNone &&
                           sends_to(program, other, cls, ref.cls);
      const bool collective = cls != ref.cls && task.group != kNone && other.group == task.group;
      if (message || collective) {
        to->insert({cls, i});
      }
    }
  }
}

void Mutator::begin(TaskRef ref, const std::string& what) {
  m_->text = name(ref) + ": " + what;
  m_->tasks = {ref};
  collect_neighbours(p_, ref, &m_->near);
}

void Mutator::begin_buffer(ClassId cls, BufferId buffer_id, const std::string& what) {
  // A fault of a buffer may show at any task that uses it, or another buffer at its addresses.
  // Without a text: a further buffer of the same change.
  if (!what.empty()) {
    m_->text = fmt::format("class {} buffer {}: {}", cls, buffer_id, what);
    m_->tasks.clear();
  }
  std::set<TaskRef> users;
  collect_users(p_.classes[cls], cls, {buffer_id}, &users);
  if (users.empty()) {  // a base that is used through views only
    collect_users(p_.classes[cls], cls, with_views(p_.classes[cls], {buffer_id}), &users);
  }
  m_->tasks.insert(m_->tasks.end(), users.begin(), users.end());
  m_->near.insert(users.begin(), users.end());
  collect_users(p_.classes[cls], cls, with_views(p_.classes[cls], {buffer_id}), &m_->near);
  if (what.empty()) return;
  std::vector<BufferId> over;  // neighbours in memory
  const RankClass& rc = p_.classes[cls];
  const Buffer& buffer = rc.buffers[buffer_id];
  if (buffer.kind != BufferKind::step || buffer.offset == kNone) return;
  for (size_t k = 0; k < rc.buffers.size(); ++k) {
    const Buffer& other = rc.buffers[k];
    if (other.kind == BufferKind::step && other.offset < buffer.offset + buffer.type.bytes() &&
        buffer.offset < other.offset + other.type.bytes()) {
      over.push_back(k);
    }
  }
  collect_users(rc, cls, over, &m_->near);
}

void Mutator::permute(ClassId cls, const std::vector<TaskId>& order) {
  RankClass& rc = p_.classes[cls];
  std::vector<TaskId> to(rc.tasks.size(), kNone);  // new place of an old task; -1: removed
  for (size_t i = order.size(); i-- > 0;) {  // backwards, so that the first of two copies wins
    to[order[i]] = i;
  }
  std::vector<Task> tasks;
  for (TaskId old : order) {
    tasks.push_back(rc.tasks[old]);
    std::vector<TaskId> deps;
    for (TaskId dep : tasks.back().deps) {
      if (to[dep] >= 0) {
        deps.push_back(to[dep]);
      }
    }
    tasks.back().deps = std::move(deps);
  }
  rc.tasks = std::move(tasks);
  const auto moved = [&](TaskRef ref) {
    if (ref.cls == cls) {
      ref.task = to[ref.task];
    }
    return ref;
  };
  std::vector<TaskRef> changed;
  for (const TaskRef& ref : m_->tasks) {
    if (moved(ref).task >= 0) {
      changed.push_back(moved(ref));
    }
  }
  std::set<TaskRef> near;
  for (const TaskRef& ref : m_->near) {
    if (moved(ref).task >= 0) {
      near.insert(moved(ref));
    }
  }
  m_->tasks = std::move(changed);
  m_->near = std::move(near);
}

bool Mutator::drop_task() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  begin(ref, "removed");
  RankClass& rank_class = cls(ref);
  std::vector<TaskId> order(rank_class.tasks.size());
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + ref.task.value());
  permute(ref.cls, order);
  return true;
}

bool Mutator::double_task() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  RankClass& rank_class = cls(ref);
  const size_t n = rank_class.tasks.size();
  const size_t next = static_cast<size_t>(ref.task) + 1;
  const size_t to = random_.flip() ? next : next + random_.below(n + 1 - next);
  begin(ref, fmt::format("doubled, the copy as task {}", to));
  std::vector<TaskId> order(n);
  std::iota(order.begin(), order.end(), 0);
  order.insert(order.begin() + to, ref.task);
  permute(ref.cls, order);
  m_->tasks.push_back({ref.cls, to});
  return true;
}

bool Mutator::swap_tasks() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  const RankClass& rank_class = cls(ref);
  std::vector<int32_t> same;
  const bool near = random_.flip();
  for (size_t i = 0; i < rank_class.tasks.size(); ++i) {
    if (rank_class.tasks[i].lane == task(ref).lane && static_cast<int32_t>(i) != ref.task &&
        (!near || std::abs(static_cast<int32_t>(i) - ref.task) < 12)) {
      same.push_back(static_cast<int32_t>(i));
    }
  }
  if (same.empty()) return false;
  const TaskRef partner{ref.cls, same[random_.below(same.size())]};
  begin(ref, "swapped with " + name(partner));
  collect_neighbours(p_, partner, &m_->near);
  m_->tasks.push_back(partner);
  std::vector<TaskId> order(rank_class.tasks.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[ref.task], order[partner.task]);
  permute(ref.cls, order);
  return true;
}

bool Mutator::move_task() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  RankClass& rank_class = cls(ref);
  const size_t to = random_.below(rank_class.tasks.size());
  if (to == ref.task) return false;
  begin(ref, fmt::format("moved to place {}", to));
  std::vector<TaskId> order(rank_class.tasks.size());
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + ref.task.value());
  order.insert(order.begin() + to, ref.task);
  permute(ref.cls, order);
  return true;
}

bool Mutator::change_lane() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  const auto lane = static_cast<program::Lane>(random_.below(program::kNumLanes));
  if (lane == task(ref).lane) return false;
  begin(ref, fmt::format("moved to lane {}", program::to_string(lane)));
  task(ref).lane = lane;
  return true;
}

bool Mutator::change_operand(bool output) {
  const TaskRef ref =
      any_task([&](const Task& task) { return !(output ? task.out : task.in).empty(); });
  if (ref.cls < 0) return false;
  const RankClass& rank_class = cls(ref);
  auto& list = output ? task(ref).out : task(ref).in;
  const size_t i = random_.below(list.size());
  std::vector<BufferId> same;
  const auto& type = rank_class.buffers[list[i]].type;
  for (size_t buffer = 0; buffer < rank_class.buffers.size(); ++buffer) {
    if (rank_class.buffers[buffer].type == type && buffer != list[i]) {
      same.push_back(buffer);
    }
  }
  if (same.empty()) return false;
  const BufferId to = same[random_.below(same.size())];
  begin(ref, fmt::format("{} {} changed from buffer {} to {}", output ? "output" : "input", i,
                         list[i], to));
  list[i] = to;
  return true;
}

bool Mutator::swap_operands() {
  const TaskRef ref = any_task([](const Task& task) { return task.in.size() > 1; });
  if (ref.cls < 0) return false;
  auto& in = task(ref).in;
  const size_t i = random_.below(in.size());
  const size_t k = random_.below(in.size());
  const auto& buffers = cls(ref).buffers;
  if (in[i] == in[k] || !(buffers[in[i]].type == buffers[in[k]].type)) {
    return false;
  }
  begin(ref, fmt::format("inputs {} and {} exchanged", i, k));
  std::swap(in[i], in[k]);
  return true;
}

bool Mutator::drop_edge() {
  const TaskRef ref = any_task([](const Task& task) { return !task.deps.empty(); });
  if (ref.cls < 0) return false;
  auto& deps = task(ref).deps;
  const size_t i = random_.below(deps.size());
  const TaskRef from{ref.cls, deps[i]};
  begin(ref, "dependency removed on " + name(from));
  collect_neighbours(p_, from, &m_->near);
  m_->tasks.push_back(from);
  deps.erase(deps.begin() + static_cast<int64_t>(i));
  return true;
}

bool Mutator::change_edge() {
  const TaskRef ref = any_task([](const Task& task) { return !task.deps.empty(); });
  if (ref.cls < 0) return false;
  auto& deps = task(ref).deps;
  const size_t i = random_.below(deps.size());
  const TaskRef from{ref.cls, deps[i]};
  const TaskId to = random_.below(cls(ref).tasks.size());
  if (to == deps[i] || to == ref.task) return false;
  begin(ref, fmt::format("dependency on {} changed to {}", name(from), name({ref.cls, to})));
  collect_neighbours(p_, from, &m_->near);
  m_->tasks.push_back(from);
  deps[i] = to;
  return true;
}

bool Mutator::add_edge() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  const TaskId to = random_.below(cls(ref).tasks.size());
  if (to == ref.task) return false;
  begin(ref, "dependency added on " + name({ref.cls, to}));
  task(ref).deps.push_back(to);
  return true;
}

/// Takes the group of another collective, adds or removes an axis, or removes a member.
bool Mutator::change_group() {
  const TaskRef ref = any_task([](const Task& task) { return task.group != kNone; });
  if (ref.cls < 0) return false;
  program::Group group = p_.groups[task(ref).group];
  const auto& axes = p_.roles[group.role].mesh.axes;
  const int32_t axis = static_cast<int32_t>(random_.below(axes.size()));
  switch (random_.below(3)) {
    case 0: {
      if (p_.groups.size() < 2) return false;
      group = p_.groups[random_.below(p_.groups.size())];
      break;
    }
    case 1:
      if (std::erase(group.axes, axis) == 0) {
        group.axes.push_back(axis);
      }
      std::sort(group.axes.begin(), group.axes.end());
      break;
    default:
      if (group.members.empty()) return false;
      group.members.erase(group.members.begin() +
                          static_cast<int64_t>(random_.below(group.members.size())));
  }
  if (p_.canonical(group) == p_.canonical(p_.groups[task(ref).group])) {
    return false;
  }
  begin(ref, "group changed");
  task(ref).group = p_.intern(group);
  return true;
}

/// Changes the tag (perhaps to that of another message), the peer's offset, or the axis. The offset
/// changes for all ranks, for one, or for two that exchange their peers.
bool Mutator::change_peer() {
  const TaskRef ref = any_task([](const Task& task) { return task.peer_axis != kNone; });
  if (ref.cls < 0) return false;
  Task& message = task(ref);
  if (random_.flip()) {
    begin(ref, "tag changed");
    std::vector<int32_t> tags;
    for (const Task& task : cls(ref).tasks) {
      if (task.tag != kNone && task.tag != message.tag) {
        tags.push_back(task.tag);
      }
    }
    message.tag =
        tags.empty() || random_.flip() ? message.tag + 1 : tags[random_.below(tags.size())];
  } else if (message.peer_by != kNone && random_.flip()) {
    if (random_.flip()) {
      program::Table table = p_.tables[message.peer_by];
      const size_t place = random_.below(table.values.size());
      table.values[place] += random_.flip() ? 1 : -1;
      begin(ref, fmt::format("peer changed at place {} of its table", place));
      message.peer_by = p_.intern(std::move(table));
    } else {
      const program::PeerMap peer_map = with_two_exchanged(cls(ref).role, message.peer_map()).first;
      begin(ref, "two ranks exchange their peers");
      message.peer = peer_map.offset;
      message.peer_by = peer_map.by;
    }
  } else if (random_.flip()) {
    const bool back = message.peer_by == kNone && random_.flip();
    const int32_t to = back ? -message.peer : message.peer + (random_.flip() ? 1 : -1);
    const graph::Mesh& mesh = p_.mesh_of(ref.cls);
    if (mesh.wrap(message.peer_axis, to) == mesh.wrap(message.peer_axis, message.peer)) {
      return false;
    }
    begin(ref, "peer changed");
    message.peer = to;
  } else {
    begin(ref, "peer axis changed");
    message.peer_axis =
        (message.peer_axis + 1) % static_cast<int32_t>(p_.mesh_of(ref.cls).axes.size());
  }
  collect_neighbours(p_, ref, &m_->near);
  return true;
}

/// Moves a peer once around its axis, to the same rank if all code wrapped offsets alike.
bool Mutator::move_peer_around() {
  const TaskRef ref = any_task([](const Task& task) { return task.peer_axis != kNone; });
  if (ref.cls < 0) return false;
  Task& message = task(ref);
  const int32_t size = p_.mesh_of(ref.cls).axes[message.peer_axis].size;
  begin(ref, "peer moved once around its axis");
  message.peer += message.peer > 0 ? size : -size;
  return true;
}

/// Gives one collective a second group of the same ranks in another spelling, in its lane or
/// another.
bool Mutator::twin_group() {
  const TaskRef ref = any_task([](const Task& task) { return task.group != kNone; });
  if (ref.cls < 0) return false;
  program::Group twin = p_.groups[task(ref).group];
  const auto& axes = p_.roles[twin.role].mesh.axes;
  const auto axis = static_cast<int32_t>(random_.below(axes.size()));
  if (axes[axis].size == 1) {
    if (std::erase(twin.axes, axis) == 0) {
      twin.axes.push_back(axis);
    }
    std::sort(twin.axes.begin(), twin.axes.end());
  } else if (twin.members.empty() &&
             std::find(twin.axes.begin(), twin.axes.end(), axis) != twin.axes.end()) {
    twin.along = axis;
    for (int32_t member = 0; member < axes[axis].size; ++member) {
      twin.members.push_back(member);
    }
  } else {
    return false;
  }
  begin(ref, "group changed to another spelling of its ranks");
  if (random_.flip()) {
    task(ref).lane =
        task(ref).lane == program::Lane::intra ? program::Lane::inter : program::Lane::intra;
  }
  task(ref).group = static_cast<int32_t>(p_.groups.size());
  p_.groups.push_back(std::move(twin));
  return true;
}

}  // namespace hocket::check

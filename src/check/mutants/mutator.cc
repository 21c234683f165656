// SPDX-License-Identifier: Apache-2.0
#include "check/mutants/mutator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace hocket::check {

void collect_users(const RankClass& c, int32_t cls, const std::vector<BufferId>& buffers,
                   std::set<TaskRef>* to) {
  for (size_t i = 0; i < c.tasks.size(); ++i) {
    for (const auto* list : {&c.tasks[i].in, &c.tasks[i].out}) {
      for (BufferId b : *list) {
        if (std::find(buffers.begin(), buffers.end(), b) != buffers.end()) {
          to->insert({cls, static_cast<int32_t>(i)});
        }
      }
    }
  }
}

void collect_neighbours(const Program& p, TaskRef r, std::set<TaskRef>* to) {
  const RankClass& c = p.classes[static_cast<size_t>(r.cls)];
  const Task& t = c.tasks[static_cast<size_t>(r.task)];
  to->insert(r);
  std::vector<BufferId> buffers = t.in;
  buffers.insert(buffers.end(), t.out.begin(), t.out.end());
  collect_users(c, r.cls, buffers, to);
  for (TaskId d : t.deps) {
    to->insert({r.cls, d});
  }
  // A lane is a chain of edges: its neighbours in it are ordered by the task.
  TaskId before = kNone, after = kNone;
  for (TaskId i = 0; i < static_cast<TaskId>(c.tasks.size()); ++i) {
    const Task& other = c.tasks[static_cast<size_t>(i)];
    for (TaskId d : other.deps) {
      if (d == r.task) {
        to->insert({r.cls, i});
      }
    }
    if (other.lane != t.lane) continue;
    if (i < r.task) {
      before = i;
    }
    if (i > r.task && after == kNone) {
      after = i;
    }
  }
  for (TaskId i : {before, after}) {
    if (i != kNone) {
      to->insert({r.cls, i});
    }
  }
  for (size_t k = 0; k < p.classes.size(); ++k) {
    const int32_t cls = static_cast<int32_t>(k);
    for (size_t i = 0; i < p.classes[k].tasks.size(); ++i) {
      const Task& o = p.classes[k].tasks[i];
      const bool message = t.tag != kNone && o.tag == t.tag && o.peer_axis == t.peer_axis &&
                           o.peer_axis != kNone && p.peer_class(o, cls) == r.cls;
      const bool collective = cls != r.cls && t.group != kNone && o.group == t.group;
      if (message || collective) {
        to->insert({cls, static_cast<int32_t>(i)});
      }
    }
  }
}

void Mutator::begin(TaskRef r, const std::string& what) {
  m_->text = name(r) + ": " + what;
  m_->tasks = {r};
  collect_neighbours(p_, r, &m_->near);
}

void Mutator::begin_buffer(int32_t c, BufferId b, const std::string& what) {
  if (!what.empty()) {
    m_->text = fmt::format("class {} buffer {}: {}", c, b, what);
    m_->tasks.clear();
  }
  std::set<TaskRef> users;
  collect_users(p_.classes[static_cast<size_t>(c)], c, {b}, &users);
  m_->tasks.insert(m_->tasks.end(), users.begin(), users.end());
  m_->near.insert(users.begin(), users.end());
  if (what.empty()) return;
  std::vector<BufferId> over;  // neighbours in memory
  const RankClass& rc = p_.classes[static_cast<size_t>(c)];
  const Buffer& buffer = rc.buffers[static_cast<size_t>(b)];
  if (buffer.kind != BufferKind::step || buffer.offset == kNone) return;
  for (size_t k = 0; k < rc.buffers.size(); ++k) {
    const Buffer& o = rc.buffers[k];
    if (o.kind == BufferKind::step && o.offset < buffer.offset + buffer.type.bytes() &&
        buffer.offset < o.offset + o.type.bytes()) {
      over.push_back(static_cast<BufferId>(k));
    }
  }
  collect_users(rc, c, over, &m_->near);
}

void Mutator::permute(int32_t c, const std::vector<int32_t>& order) {
  RankClass& rc = p_.classes[static_cast<size_t>(c)];
  std::vector<int32_t> to(rc.tasks.size(), -1);
  for (size_t i = order.size(); i-- > 0;) {
    to[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  }
  std::vector<Task> tasks;
  for (int32_t old : order) {
    tasks.push_back(rc.tasks[static_cast<size_t>(old)]);
    std::vector<TaskId> deps;
    for (TaskId d : tasks.back().deps) {
      if (to[static_cast<size_t>(d)] >= 0) {
        deps.push_back(to[static_cast<size_t>(d)]);
      }
    }
    tasks.back().deps = std::move(deps);
  }
  rc.tasks = std::move(tasks);
  auto moved = [&](TaskRef r) {
    if (r.cls == c) {
      r.task = to[static_cast<size_t>(r.task)];
    }
    return r;
  };
  std::vector<TaskRef> changed;
  for (const TaskRef& r : m_->tasks) {
    if (moved(r).task >= 0) {
      changed.push_back(moved(r));
    }
  }
  std::set<TaskRef> near;
  for (const TaskRef& r : m_->near) {
    if (moved(r).task >= 0) {
      near.insert(moved(r));
    }
  }
  m_->tasks = std::move(changed);
  m_->near = std::move(near);
}

bool Mutator::drop_task() {
  const TaskRef r = any_task();
  if (r.cls < 0) return false;
  begin(r, "removed");
  RankClass& c = cls(r);
  std::vector<int32_t> order(c.tasks.size());
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + r.task);
  permute(r.cls, order);
  return true;
}

bool Mutator::double_task() {
  const TaskRef r = any_task();
  if (r.cls < 0) return false;
  RankClass& c = cls(r);
  const size_t n = c.tasks.size();
  const size_t to = random_.flip() ? static_cast<size_t>(r.task) + 1
                                   : static_cast<size_t>(r.task) + 1 +
                                         random_.below(n - static_cast<size_t>(r.task));
  begin(r, fmt::format("doubled, the copy as task {}", to));
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  order.insert(order.begin() + static_cast<int64_t>(to), r.task);
  permute(r.cls, order);
  m_->tasks.push_back({r.cls, static_cast<int32_t>(to)});
  return true;
}

bool Mutator::swap_tasks() {
  const TaskRef a = any_task();
  if (a.cls < 0) return false;
  const RankClass& c = cls(a);
  std::vector<int32_t> same;
  const bool near = random_.flip();
  for (size_t i = 0; i < c.tasks.size(); ++i) {
    if (c.tasks[i].lane == task(a).lane && static_cast<int32_t>(i) != a.task &&
        (!near || std::abs(static_cast<int32_t>(i) - a.task) < 12)) {
      same.push_back(static_cast<int32_t>(i));
    }
  }
  if (same.empty()) return false;
  const TaskRef b{a.cls, same[random_.below(same.size())]};
  begin(a, "swapped with " + name(b));
  collect_neighbours(p_, b, &m_->near);
  m_->tasks.push_back(b);
  std::vector<int32_t> order(c.tasks.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<size_t>(a.task)], order[static_cast<size_t>(b.task)]);
  permute(a.cls, order);
  return true;
}

bool Mutator::move_task() {
  const TaskRef r = any_task();
  if (r.cls < 0) return false;
  RankClass& c = cls(r);
  const size_t to = random_.below(c.tasks.size());
  if (to == static_cast<size_t>(r.task)) return false;
  begin(r, fmt::format("moved to place {}", to));
  std::vector<int32_t> order(c.tasks.size());
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + r.task);
  order.insert(order.begin() + static_cast<int64_t>(to), r.task);
  permute(r.cls, order);
  return true;
}

bool Mutator::change_lane() {
  const TaskRef r = any_task();
  if (r.cls < 0) return false;
  const auto lane = static_cast<program::Lane>(random_.below(program::kNumLanes));
  if (lane == task(r).lane) return false;
  begin(r, fmt::format("moved to lane {}", program::to_string(lane)));
  task(r).lane = lane;
  return true;
}

bool Mutator::change_operand(bool output) {
  const TaskRef r = any_task([&](const Task& t) { return !(output ? t.out : t.in).empty(); });
  if (r.cls < 0) return false;
  const RankClass& c = cls(r);
  auto& list = output ? task(r).out : task(r).in;
  const size_t i = random_.below(list.size());
  std::vector<BufferId> same;
  const auto& type = c.buffers[static_cast<size_t>(list[i])].type;
  for (size_t b = 0; b < c.buffers.size(); ++b) {
    if (c.buffers[b].type == type && static_cast<BufferId>(b) != list[i]) {
      same.push_back(static_cast<BufferId>(b));
    }
  }
  if (same.empty()) return false;
  const BufferId to = same[random_.below(same.size())];
  begin(r, fmt::format("{} {} changed from buffer {} to {}", output ? "output" : "input", i,
                       list[i], to));
  list[i] = to;
  return true;
}

bool Mutator::swap_operands() {
  const TaskRef r = any_task([](const Task& t) { return t.in.size() > 1; });
  if (r.cls < 0) return false;
  auto& in = task(r).in;
  const size_t i = random_.below(in.size()), k = random_.below(in.size());
  const auto& buffers = cls(r).buffers;
  if (in[i] == in[k] ||
      !(buffers[static_cast<size_t>(in[i])].type == buffers[static_cast<size_t>(in[k])].type)) {
    return false;
  }
  begin(r, fmt::format("inputs {} and {} exchanged", i, k));
  std::swap(in[i], in[k]);
  return true;
}

bool Mutator::drop_edge() {
  const TaskRef r = any_task([](const Task& t) { return !t.deps.empty(); });
  if (r.cls < 0) return false;
  auto& deps = task(r).deps;
  const size_t i = random_.below(deps.size());
  const TaskRef from{r.cls, deps[i]};
  begin(r, "dependency removed on " + name(from));
  collect_neighbours(p_, from, &m_->near);
  m_->tasks.push_back(from);
  deps.erase(deps.begin() + static_cast<int64_t>(i));
  return true;
}

bool Mutator::change_edge() {
  const TaskRef r = any_task([](const Task& t) { return !t.deps.empty(); });
  if (r.cls < 0) return false;
  auto& deps = task(r).deps;
  const size_t i = random_.below(deps.size());
  const TaskRef from{r.cls, deps[i]};
  const TaskId to = static_cast<TaskId>(random_.below(cls(r).tasks.size()));
  if (to == deps[i] || to == r.task) return false;
  begin(r, fmt::format("dependency on {} changed to {}", name(from), name({r.cls, to})));
  collect_neighbours(p_, from, &m_->near);
  m_->tasks.push_back(from);
  deps[i] = to;
  return true;
}

bool Mutator::add_edge() {
  const TaskRef r = any_task();
  if (r.cls < 0) return false;
  const TaskId to = static_cast<TaskId>(random_.below(cls(r).tasks.size()));
  if (to == r.task) return false;
  begin(r, "dependency added on " + name({r.cls, to}));
  task(r).deps.push_back(to);
  return true;
}

bool Mutator::change_group() {
  const TaskRef r = any_task([](const Task& t) { return t.group != kNone; });
  if (r.cls < 0) return false;
  program::Group group = p_.groups[static_cast<size_t>(task(r).group)];
  const int32_t axis = static_cast<int32_t>(random_.below(p_.mesh.axes.size()));
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
  if (p_.canonical(group) == p_.canonical(p_.groups[static_cast<size_t>(task(r).group)])) {
    return false;
  }
  begin(r, "group changed");
  task(r).group = p_.intern(group);
  return true;
}

bool Mutator::change_peer() {
  const TaskRef r = any_task([](const Task& t) { return t.peer_axis != kNone; });
  if (r.cls < 0) return false;
  Task& t = task(r);
  if (random_.flip()) {
    begin(r, "tag changed");
    std::vector<int32_t> tags;
    for (const Task& o : cls(r).tasks) {
      if (o.tag != kNone && o.tag != t.tag) {
        tags.push_back(o.tag);
      }
    }
    t.tag = tags.empty() || random_.flip() ? t.tag + 1 : tags[random_.below(tags.size())];
  } else if (random_.flip()) {
    const int32_t to = random_.flip() ? -t.peer : t.peer + (random_.flip() ? 1 : -1);
    if (p_.mesh.wrap(t.peer_axis, to) == p_.mesh.wrap(t.peer_axis, t.peer)) return false;
    begin(r, "peer changed");
    t.peer = to;
  } else {
    begin(r, "peer axis changed");
    t.peer_axis = (t.peer_axis + 1) % static_cast<int32_t>(p_.mesh.axes.size());
  }
  collect_neighbours(p_, r, &m_->near);
  return true;
}

/// A peer beyond the end of its axis: the same rank, if everybody wrapped it the same way as often.
bool Mutator::move_peer_around() {
  const TaskRef r = any_task([](const Task& t) { return t.peer_axis != kNone; });
  if (r.cls < 0) return false;
  Task& t = task(r);
  const int32_t n = p_.mesh.axes[static_cast<size_t>(t.peer_axis)].size;
  begin(r, "peer moved once around its axis");
  t.peer += t.peer > 0 ? n : -n;
  return true;
}

/// A second group of the same ranks, spelled differently, for one collective, in its lane or
/// another.
bool Mutator::twin_group() {
  const TaskRef r = any_task([](const Task& t) { return t.group != kNone; });
  if (r.cls < 0) return false;
  program::Group twin = p_.groups[static_cast<size_t>(task(r).group)];
  const int32_t pp = p_.mesh.axis("pp");
  const auto axis = static_cast<int32_t>(random_.below(p_.mesh.axes.size()));
  if (p_.mesh.axes[static_cast<size_t>(axis)].size == 1) {
    if (std::erase(twin.axes, axis) == 0) {
      twin.axes.push_back(axis);
    }
    std::sort(twin.axes.begin(), twin.axes.end());
  } else if (axis == pp && twin.members.empty() &&
             std::find(twin.axes.begin(), twin.axes.end(), pp) != twin.axes.end()) {
    for (size_t c = 0; c < p_.classes.size(); ++c) {
      twin.members.push_back(static_cast<int32_t>(c));
    }
  } else {
    return false;
  }
  begin(r, "group changed to another spelling of its ranks");
  if (random_.flip()) {
    task(r).lane =
        task(r).lane == program::Lane::intra ? program::Lane::inter : program::Lane::intra;
  }
  task(r).group = static_cast<int32_t>(p_.groups.size());
  p_.groups.push_back(std::move(twin));
  return true;
}

}  // namespace hocket::check

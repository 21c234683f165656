// SPDX-License-Identifier: Apache-2.0
// Implements: TablesBuilder (tables_builder.h), the flattening of a program's tasks; build_tables.
#include "sim/tables.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "collectives/comm_op.h"
#include "sim/tables_builder.h"

namespace hocket::sim {

using program::kNone;
using program::Lane;
using program::RankClass;
using program::Task;

Tables TablesBuilder::build() {
  // Classes become flat tables of tasks. The members of collectives and the peers of messages
  // determine which ranks are equivalent; one rank per equivalence class is replayed. Then the
  // members and links of those ranks are laid out. Durations of transfers are filled in on demand.
  t_.program = &p_;
  if (p_.classes.empty()) fail("sim", "the program has no rank class");
  if (const std::string wrong = p_.bad_placement(); !wrong.empty()) {
    fail("sim", "{}; expected every rank in exactly one class", wrong);
  }
  const int32_t world = p_.num_ranks();
  class_of_ = p_.class_table();
  for (size_t role = 0; role < p_.roles.size(); ++role) {
    first_rank_.push_back(p_.first_rank(role));
  }
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    flatten(cls);
  }
  check_collectives();
  used_groups_ = groups_by_class();
  find_communicators(world);
  find_peer_pairs();
  add_flows();
  choose_ranks(world);
  lay_out_groups();
  lay_out_links();
  for (ClassTable& table : t_.classes) {
    const size_t transfers = table.collectives.size() + table.p2p.size();
    table.transfer_ns.assign(transfers * t_.num_shapes, -1);
    if (durations_.network()) {
      table.demand.assign(transfers * t_.num_shapes, nullptr);
    }
  }
  return std::move(t_);
}

void TablesBuilder::flatten(ClassId cls) {
  // Builds an adjacency list in one array, in two passes over the class. The first counts
  // successors and predecessors of each task; its predecessors are its dependencies and the
  // previous task of its lane. The counts become the bounds [succ_begin, succ_end) of the
  // successors. The second pass fills these in, moving succ_end along. Then classify adds the data
  // of each task's type.
  const RankClass& rc = p_.classes[cls];
  const int32_t n = std::ssize(rc.tasks);
  ClassTable table;
  table.tasks.resize(n);
  table.waits.assign(n, 0);
  std::vector<int32_t> out(n, 0);
  std::array<TaskId, program::kNumLanes> last;
  last.fill(kNone);
  const bool launched = options_.launch_ns > 0;
  if (launched) {
    add_launches(cls, table);
  }
  for (int32_t i = 0; i < n; ++i) {
    const Task& task = rc.tasks[i];
    if (launched && table.host_before[i] != kNone) {
      ++out[table.host_before[i]];
      ++table.waits[i];
    }
    for (TaskId dep : task.deps) {
      if (dep < 0 || dep >= n || dep == i) {
        fail("sim", "{} depends on task {}; expected another task of its class (0 to {})",
             program::task_name(p_, cls, i), dep, n - 1);
      }
      ++out[dep];
      ++table.waits[i];
    }
    TaskId& previous = last[queue_of(task)];
    if (previous != kNone) {
      ++out[previous];
      ++table.waits[i];
    }
    table.before.push_back(previous);
    previous = i;
  }
  int32_t total = 0;
  for (int32_t i = 0; i < n; ++i) {
    table.tasks[i].succ_begin = total;
    table.tasks[i].succ_end = total;
    total += out[i];
  }
  table.succ.resize(total);
  last.fill(kNone);
  for (int32_t i = 0; i < n; ++i) {
    const Task& task = rc.tasks[i];
    if (launched && table.host_before[i] != kNone) {
      table.succ[table.tasks[table.host_before[i]].succ_end++] = i;
    }
    for (TaskId dep : task.deps) {
      table.succ[table.tasks[dep].succ_end++] = i;
    }
    TaskId& previous = last[queue_of(task)];
    if (previous != kNone) {
      table.succ[table.tasks[previous].succ_end++] = i;
    }
    previous = i;
  }
  for (int32_t i = 0; i < n; ++i) {
    classify(cls, i, table);
  }
  t_.classes.push_back(std::move(table));
}

void TablesBuilder::add_launches(ClassId cls, ClassTable& table) {
  const RankClass& rc = p_.classes[cls];
  TaskId host = kNone;
  int64_t launched_ns = 0;
  for (size_t i = 0; i < rc.tasks.size(); ++i) {
    const program::Kind& kind = p_.kind(rc.tasks[i]);
    const bool runs = rc.tasks[i].lane == Lane::host;
    const bool determines_sizes =
        program::is_communication(kind) && comm::op(kind.communication).makes_sizes;
    const bool awaited = determines_sizes || durations_.host_reads(cls, i);
    if (!runs) {
      launched_ns += options_.launch_ns + durations_.more_launches_ns(cls, i);
    }
    table.host_before.push_back(host);
    table.launched_ns.push_back(launched_ns);
    if (awaited) {
      table.tasks[i].host_waits = true;
      host = i;
      launched_ns = 0;
    }
  }
}

void TablesBuilder::classify(ClassId cls, TaskId i, ClassTable& table) {
  // The event loop knows three sorts of task. An end of a message: its link is noted, and it joins
  // the queue of its channel. There the k-th send of a rank matches the k-th receive of its peer. A
  // collective: it gets its ordinal in its channel (group and lane), by which members match.
  // Anything else is work with a duration that is known now.
  const Task& task = p_.classes[cls].tasks[i];
  const program::Kind& kind = p_.kind(task);
  TaskRecord& record = table.tasks[i];
  record.lane = task.lane;
  if (program::is_communication(kind) && !program::is_collective(kind)) {
    const bool send = comm::op(kind.communication).role == comm::Role::send;
    const std::vector<graph::Axis>& axes = p_.mesh_of(cls).axes;
    if (task.peer_axis < 0 || task.peer_axis >= std::ssize(axes)) {
      fail("sim", "{} names mesh axis {}; expected 0 to {}", program::task_name(p_, cls, i),
           task.peer_axis, axes.size() - 1);
    }
    const Link link{p_.classes[cls].role, peer_maps_.number(p_.classes[cls].role, task.peer_map())};
    const Link back{link.role, peer_maps_.inverse(link.peer_map)};
    if (back.peer_map == kNone) {
      fail("sim", "{} gives several ranks the same peer; expected a different one for each",
           program::task_name(p_, cls, i));
    }
    record.type = send ? TaskType::send : TaskType::recv;
    record.communication = std::ssize(table.p2p);
    P2pRecord p2p;
    p2p.send = send;
    p2p.link = links_.emplace(link, links_.size()).first->second;
    if (!send) {
      p2p.slot = table.num_recvs++;
    }
    const auto [channel, fresh] =
        message_channels_.emplace(std::pair(send ? link : back, task.tag), std::ssize(t_.messages));
    if (fresh) {
      const std::vector<std::vector<MessageEnd>> none(p_.classes.size());
      t_.messages.push_back({none, none});
    }
    p2p.channel = channel->second;
    Channel& messages = t_.messages[p2p.channel];
    std::vector<MessageEnd>& queue = (send ? messages.sends : messages.receives)[cls];
    p2p.ordinal = std::ssize(queue);
    queue.push_back({i, p2p.slot});
    table.p2p.push_back(p2p);
  } else if (program::is_collective(kind)) {
    if (task.group < 0 || task.group >= p_.groups.size()) {
      fail("sim", "{} names group {}; expected 0 to {}", program::task_name(p_, cls, i), task.group,
           std::ssize(p_.groups) - 1);
    }
    record.type = TaskType::collective;
    record.communication = std::ssize(table.collectives);
    const std::pair key{task.group, task.lane};
    const auto [it, fresh] = channels_.emplace(key, channels_.size());
    if (fresh) {
      t_.channel_group.push_back(task.group);
      t_.channel_length.push_back(0);
      t_.channel_tasks.emplace_back(p_.classes.size());
    }
    std::vector<TaskId>& order = t_.channel_tasks[it->second][cls];
    table.collectives.push_back({.channel = it->second});
    table.collectives.back().ordinal = std::ssize(order);
    order.push_back(i);
    int32_t& length = t_.channel_length[it->second];
    length = std::max<int32_t>(length, std::ssize(order));
  } else {
    record.ns = durations_.work_ns(cls, i);
    HOCKET_CHECK(record.ns >= 0, "{} takes {} ns", program::task_name(p_, cls, i), record.ns);
  }
}

int32_t TablesBuilder::peer(int32_t rank, const Link& link) const {
  const int32_t first = first_rank_[link.role];
  return first + peer_maps_.peers(link.peer_map)[rank - first];
}

void TablesBuilder::check_collectives() const {
  for (size_t ch = 0; ch < t_.channel_tasks.size(); ++ch) {
    for (const std::vector<ClassId>& met : p_.meetings(p_.groups[t_.channel_group[ch]])) {
      for (ClassId cls : met) {
        expect_same(t_.channel_tasks[ch], met[0], cls);
      }
    }
  }
}

void TablesBuilder::expect_same(const std::vector<std::vector<TaskId>>& per_class, ClassId first,
                                ClassId other) const {
  const auto& theirs = per_class[first];
  const auto& ours = per_class[other];
  for (size_t k = 0; k < std::min(theirs.size(), ours.size()); ++k) {
    const auto& their_kind = p_.kind(p_.classes[first].tasks[theirs[k]]);
    const auto& our_kind = p_.kind(p_.classes[other].tasks[ours[k]]);
    if (&their_kind == &our_kind || program::may_meet(their_kind, our_kind)) continue;
    fail_run("sim",
             "members of one group execute different collectives; got {} in class {} and {} in "
             "class {}; expected the same operation on the same types",
             program::task_name(p_, first, theirs[k]), p_.classes[first].name,
             program::task_name(p_, other, ours[k]), p_.classes[other].name);
  }
}

std::vector<int32_t> TablesBuilder::members(GroupId group, int32_t rank) const {
  std::vector<int32_t> ranks = p_.members(p_.groups[group], rank);
  if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
    fail("sim", "rank {} executes a collective of group {}, but is not a member of it", rank,
         group);
  }
  return ranks;
}

ShapeId TablesBuilder::shape_of(std::span<const int32_t> ranks) {
  const ShapeId shape = durations_.shape_of(ranks);
  t_.num_shapes = std::max(t_.num_shapes, shape.value() + 1);
  return shape;
}

std::vector<std::vector<GroupId>> TablesBuilder::groups_by_class() const {
  std::vector<std::vector<GroupId>> used(p_.classes.size());
  for (size_t ch = 0; ch < t_.channel_tasks.size(); ++ch) {
    for (size_t c = 0; c < used.size(); ++c) {
      if (!t_.channel_tasks[ch][c].empty()) {
        used[c].push_back(t_.channel_group[ch]);
      }
    }
  }
  for (auto& groups : used) {
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  }
  return used;
}

Tables build_tables(const Program& program, Durations& durations, const ReplayOptions& options) {
  return TablesBuilder(program, durations, options).build();
}

}  // namespace hocket::sim

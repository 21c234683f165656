// SPDX-License-Identifier: Apache-2.0
// Critical path and deadlock report of a replay.
#include "sim/explain.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"

namespace hocket::sim {
namespace {

using program::kNone;
using program::Task;

size_t state_of(const Tables& tables, const CollectiveRecord& record, RankIndex index) {
  const GroupId group = tables.channel_group[record.channel];
  return tables.channel_base[record.channel] +
         int64_t{tables.instance(group, index)} * tables.channel_length[record.channel] +
         record.ordinal;
}

}  // namespace

std::vector<PathStep> critical_path(const Tables& tables, const Replay& replay,
                                    const std::vector<TaskAt>& cause,
                                    const std::vector<RankIndex>& last_arriver) {
  // Walks back from the task that ended last, always to the event that the task waited for. Usually
  // that is `cause`, the later of its last dependency and its lane predecessor. For a collective it
  // is the cause of the last member to arrive. For a receive it is the sender, if the message came
  // after the receive was posted. For a task that the host launched late it is the task that the
  // host had awaited last. Every step spans the time from the end of its cause to its own end, so
  // that the steps add up to the whole.
  std::vector<PathStep> path;
  TaskAt here;
  int64_t latest = -1;
  for (RankIndex i = 0; i < tables.num_ranks(); ++i) {
    const ClassTable& table = tables.of(i);
    for (size_t k = 0; k < table.tasks.size(); ++k) {
      const int64_t end = replay.end_of_ns[replay.base[i] + k];
      if (end > latest) {
        latest = end;
        here = {i, k};
      }
    }
  }
  while (here.task != kNone) {
    const ClassTable& table = tables.of(here.index);
    const TaskRecord& ended = table.tasks[here.task];
    const size_t k = replay.base[here.index] + here.task;
    int64_t begin = replay.start_ns[k];
    TaskAt next = cause[k];
    if (ended.type == TaskType::collective) {
      const CollectiveRecord& record = table.collectives[ended.collective()];
      const RankIndex last = last_arriver[state_of(tables, record, here.index)];
      begin = replay.transfer_ns[k];
      const TaskId task = tables.channel_tasks[record.channel][tables.cls[last]][record.ordinal];
      next = cause[replay.base[last] + task];
    } else if (ended.type == TaskType::recv) {
      const P2pRecord& record = table.p2p[ended.p2p()];
      const RankIndex peer = tables.peer(record.link, here.index);
      const TaskAt sender{peer, tables.other_end(record, peer).task};
      const int64_t sent = replay.end_of_ns[replay.base[sender.index] + sender.task];
      if (sent > begin) {
        begin = sent;
        next = sender;
      }
    }
    if (replay.end_of_ns[k] > begin) {
      path.push_back({here.index, here.task, begin, replay.end_of_ns[k]});
    }
    const int64_t waited =
        next.task == kNone ? 0 : replay.end_of_ns[replay.base[next.index] + next.task];
    if (waited < begin) {
      path.push_back({here.index, here.task, waited, begin, true});
    }
    here = next;
  }
  return path;
}

void throw_deadlock(const Tables& tables, const std::vector<int64_t>& base,
                    const std::vector<int32_t>& waits, const std::vector<int32_t>& arrived,
                    const std::vector<bool>& ended) {
  // Nothing can start any more. Every lane with tasks left is stuck at the first of them. Each gets
  // a line that names its unmet wait: a dependency, a message or the members of its group. Beyond
  // kShown lines they are only counted.
  const Program& program = *tables.program;
  constexpr int kShown = 12;
  int found = 0;
  std::string text;
  for (RankIndex i = 0; i < tables.num_ranks(); ++i) {
    const ClassTable& table = tables.of(i);
    const ClassId cls = tables.cls[i];
    const auto& tasks = program.classes[cls].tasks;
    std::array<bool, program::kNumLanes> seen{};
    for (size_t k = 0; k < tasks.size(); ++k) {
      const size_t lane = place_of(tasks[k].lane);
      const bool done = ended[base[i] + k];
      if (done || seen[lane]) continue;
      seen[lane] = true;
      if (++found > kShown) continue;
      const TaskRecord& record = table.tasks[k];
      const auto name = [&](TaskId task) { return program::task_name(program, cls, task); };
      std::string why;
      if (waits[base[i] + k] > 0) {
        why = "waits for its dependencies";
        for (TaskId dep : tasks[k].deps) {
          if (!ended[base[i] + dep]) {
            why = "waits for " + name(dep);
            break;
          }
        }
      } else if (record.type == TaskType::recv) {
        const P2pRecord& link = table.p2p[record.p2p()];
        const RankIndex index = tables.peer(link.link, i);
        const int32_t peer = tables.ranks[index];
        const TaskId sender = tables.other_end(link, index).task;
        why = sender == kNone
                  ? fmt::format("waits for a message (tag {}) that rank {} never sends",
                                tasks[k].tag, peer)
                  : fmt::format("waits for {} of rank {}",
                                program::task_name(program, tables.cls[index], sender), peer);
      } else if (record.type == TaskType::collective) {
        const CollectiveRecord& collective = table.collectives[record.collective()];
        const GroupId group = tables.channel_group[collective.channel];
        const Instance& instance = tables.instances[group][tables.instance(group, i)];
        why = fmt::format("waits in its group: {} of {} members have arrived",
                          arrived[state_of(tables, collective, i)], instance.members.size());
      } else {
        why = "never ended";
      }
      text += fmt::format("\n  rank {} {}: {} {}", tables.ranks[i],
                          program::to_string(tasks[k].lane), name(k), why);
    }
  }
  if (found > kShown) {
    text += fmt::format("\n  and {} more", found - kShown);
  }
  fail_run("sim", "the program cannot finish: a deadlock{}", text);
}

}  // namespace hocket::sim

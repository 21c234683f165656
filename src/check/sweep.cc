// SPDX-License-Identifier: Apache-2.0
#include "check/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace hocket::check {

using program::kNumLanes;

int32_t Sweep::lane_index(int32_t global) const {
  const TaskRef ref = ctx_.ref(global);
  return ref.cls.value() * kNumLanes + static_cast<int32_t>(ctx_.task(ref).lane);
}

void Sweep::match() {
  matching_.partner.assign(ctx_.position.size(), -1);
  matching_.meeting.assign(ctx_.position.size(), -1);
  match_messages();
  match_collectives();
}

/// A channel holds the messages of one tag from the ranks of one class to their peers: sender and
/// receiver class, axis, offset as the sender sees it, tag.
struct Sweep::Message {
  std::tuple<ClassId, ClassId, int32_t, int32_t, int32_t> channel;
  bool receive;
  int32_t task;
  bool operator<(const Message& other) const {
    return std::tie(channel, receive, task) < std::tie(other.channel, other.receive, other.task);
  }
};

void Sweep::match_messages() {
  // Both ends use a channel in one lane each (lane-recomputed), so the k-th send meets the k-th
  // receive. Sorted, a channel is a run of its sends in issue order, then of its receives.
  std::vector<Message> list;
  const Program& program = ctx_.program;
  for (size_t c = 0; c < program.classes.size(); ++c) {
    const ClassId cls = c;
    for (size_t i = 0; i < program.classes[c].tasks.size(); ++i) {
      const Task& task = program.classes[c].tasks[i];
      const KindInfo& info = ctx_.kind(task);
      if (!is_message(info)) continue;
      const ClassId other = program.peer_class(task, cls);
      const bool receive = is_receive(info);
      const int32_t offset =
          program.mesh.wrap(task.peer_axis, receive ? -int64_t{task.peer} : task.peer);
      list.push_back(
          {{receive ? other : cls, receive ? cls : other, task.peer_axis, offset, task.tag},
           receive,
           ctx_.global(cls, i)});
    }
  }
  num_messages_ = static_cast<int64_t>(list.size()) / 2;
  std::sort(list.begin(), list.end());
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin;
    size_t sends = 0;
    for (; end < list.size() && list[end].channel == list[begin].channel; ++end) {
      sends += !list[end].receive;
    }
    const size_t receives = end - begin - sends;
    for (size_t k = 0; k < std::max(sends, receives); ++k) {
      if (k < sends && k < receives) {
        pair(list[begin + k].task, list[begin + sends + k].task);
      } else if (k < sends) {
        report_unmatched(list[begin + k].task, true);
      } else {
        report_unmatched(list[begin + sends + k].task, false);
      }
    }
    begin = end;
  }
}

void Sweep::pair(int32_t send, int32_t receive) {
  matching_.partner[send] = receive;
  matching_.partner[receive] = send;
  const TaskRef from = ctx_.ref(send);
  const TaskRef to = ctx_.ref(receive);
  if (ctx_.kind(ctx_.task(from)).in == ctx_.kind(ctx_.task(to)).out) return;
  ctx_.report(
      "message-type", ProblemClass::order, to, {from},
      fmt::format("{} expects {}, but {} sends {}", ctx_.name(to),
                  graph::to_string(ctx_.program.kind(ctx_.task(to)).out[0]), ctx_.name(from),
                  graph::to_string(ctx_.program.kind(ctx_.task(from)).in[0])),
      "give both ends the same type, tag and order");
}

void Sweep::report_unmatched(int32_t message, bool send) {
  // Named beside it: up to two messages of its tag on the other side, matched with another or not.
  const TaskRef ref = ctx_.ref(message);
  const Task& task = ctx_.task(ref);
  std::vector<TaskRef> others;
  const ClassId other = ctx_.program.peer_class(task, ref.cls);
  const auto& tasks = ctx_.program.classes[other].tasks;
  for (size_t i = 0; i < tasks.size() && others.size() < 2; ++i) {
    if (is_message(ctx_.kind(tasks[i])) && is_receive(ctx_.kind(tasks[i])) == send &&
        tasks[i].tag == task.tag) {
      others.push_back({other, i});
    }
  }
  ctx_.report(send ? "send-unmatched" : "recv-unmatched", ProblemClass::order, ref, others,
              fmt::format("{} (tag {}) has no matching {} in class {}", ctx_.name(ref), task.tag,
                          comm::message(send ? comm::Role::receive : comm::Role::send).name, other),
              send ? "add the recv, or remove the send" : "add the send, or remove the recv");
}

void Sweep::match_collectives() {
  // A set of ranks is one group (group-once) and meets in one lane (lane-recomputed), where the
  // order of its collectives is that of the tasks. Ranks of a class run the same list and are in
  // step; over several classes, the k-th collective of each must be the same.
  const Program& program = ctx_.program;
  std::vector<std::vector<std::vector<int32_t>>> by_group(
      program.groups.size(), std::vector<std::vector<int32_t>>(program.classes.size()));
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (size_t i = 0; i < program.classes[cls].tasks.size(); ++i) {
      const Task& task = program.classes[cls].tasks[i];
      if (!is_collective(ctx_.kind(task))) continue;
      ++num_collectives_;
      by_group[task.group][cls].push_back(ctx_.global(cls, i));
    }
  }
  for (size_t group = 0; group < program.groups.size(); ++group) {
    const GroupInfo& info = ctx_.groups[group];
    if (!info.crosses_stages) continue;
    size_t most = 0;
    for (ClassId cls : info.classes) {
      most = std::max(most, by_group[group][cls].size());
    }
    for (size_t k = 0; k < most; ++k) {
      Matching::Meeting meeting = meet(info, k, by_group[group]);
      for (int32_t task : meeting.tasks) {
        matching_.meeting[task] = static_cast<int32_t>(matching_.meetings.size());
      }
      matching_.meetings.push_back(std::move(meeting));
    }
  }
}

Matching::Meeting Sweep::meet(const GroupInfo& group, size_t k,
                              const std::vector<std::vector<int32_t>>& by_class) {
  Matching::Meeting meeting;
  std::vector<TaskRef> refs;
  ClassId absent = program::kNone;
  for (ClassId cls : group.classes) {
    const auto& list = by_class[cls];
    if (k < list.size()) {
      meeting.tasks.push_back(list[k]);
      refs.push_back(ctx_.ref(list[k]));
    } else {
      absent = cls;
    }
  }
  if (absent >= 0) {
    meeting.complete = false;
    const auto& list = by_class[absent];
    std::vector<TaskRef> related;  // the last of the class that has too few comes first
    if (!list.empty()) {
      related.push_back(ctx_.ref(list.back()));
    }
    related.insert(related.end(), refs.begin(), refs.end());
    ctx_.report(
        "collective-unmatched", ProblemClass::order, refs[0], related,
        fmt::format("{} is number {} of its group, but class {} ({}) takes part in only {}",
                    ctx_.name(refs[0]), k + 1, absent, ctx_.ranks_text(absent), list.size()),
        "let every member of the group run the same collectives");
    return meeting;
  }
  for (const TaskRef& ref : refs) {
    if (ctx_.task(ref).kind != ctx_.task(refs[0]).kind) {
      meeting.complete = false;
      ctx_.report("collective-differs", ProblemClass::order, ref, {refs[0]},
                  fmt::format("{} and {} are number {} of their group, but differ in op, "
                              "attributes or sizes",
                              ctx_.name(refs[0]), ctx_.name(ref), k + 1),
                  "run the collectives of a group in the same order on every member");
      break;
    }
  }
  return meeting;
}

bool Sweep::run(Hazards& hazards, Values* values) {
  // One run with sends that complete alone gives the order in which every task is looked at once:
  // first its hazards, under the clock of what is known to be finished before it (the clock of its
  // lane joined with those of its dependencies), then its values. What it overwrote is lost to
  // them. A message brings no order between ranks here, so that what is shown holds for every
  // transport.
  const size_t num_lanes = ctx_.program.classes.size() * kNumLanes;
  std::vector<Clock> clock(ctx_.position.size());
  std::vector<Clock> lane_clock(num_lanes, Clock{});
  std::vector<BufferId> lost;
  std::vector<TaskRef> refs;
  auto look_at = [&](int32_t global) {
    const TaskRef ref = ctx_.ref(global);
    const Task& task = ctx_.task(ref);
    const size_t lane = static_cast<size_t>(lane_index(global));
    Clock before = lane_clock[lane];
    for (TaskId dep : task.deps) {
      const Clock& other = clock[ctx_.global(ref.cls, dep)];
      for (size_t i = 0; i < before.size(); ++i) {
        before[i] = std::max(before[i], other[i]);
      }
    }
    lost.clear();
    hazards.visit(ref.cls, ref.task, global, before, &lost);
    if (values) {
      for (BufferId buffer : lost) {
        values->lose(ref.cls, buffer);
      }
    }
    ++before[place_of(task.lane)];
    lane_clock[lane] = before;
    clock[global] = before;
  };
  AbstractRun lanes(ctx_, matching_, Sends::alone);
  const bool ended = lanes.run([&](std::span<const int32_t> tasks, bool meeting) {
    refs.clear();
    for (int32_t global : tasks) {
      look_at(global);
      refs.push_back(ctx_.ref(global));
    }
    if (!values) return;
    if (meeting) return values->meet(refs);
    for (int32_t global : tasks) {
      const TaskRef ref = ctx_.ref(global);
      const bool receive = is_receive(ctx_.kind(ctx_.task(ref)));
      values->step(ref.cls, ref.task, global, receive ? matching_.partner[global] : -1);
    }
  });
  if (ended) return true;
  const std::vector<AbstractRun::Cycle> cycles = lanes.cycles();
  for (const AbstractRun::Cycle& cycle : cycles) {
    ctx_.report("deadlock", ProblemClass::order, cycle.tasks[0], cycle.tasks, cycle.text,
                "reorder the tasks or remove one of these waits");
  }
  if (cycles.empty() && ctx_.problems.count == 0) {
    ctx_.report("deadlock", ProblemClass::order, {}, {}, "some tasks can never start",
                "look for tasks that wait for each other");
  }
  return false;
}

std::string Sweep::stuck_when_sends_wait() const {
  AbstractRun lanes(ctx_, matching_, Sends::wait);
  if (lanes.run([](std::span<const int32_t>, bool) {})) return "";
  const std::vector<AbstractRun::Cycle> cycles = lanes.cycles();
  return cycles.empty() ? "some tasks can never start" : cycles[0].text;
}

}  // namespace hocket::check

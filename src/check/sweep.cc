// SPDX-License-Identifier: Apache-2.0
#include "check/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace hocket::check {

using program::kNumLanes;

int32_t Sweep::lane_index(int32_t global) const {
  const TaskRef r = ctx_.ref(global);
  return r.cls * kNumLanes + static_cast<int32_t>(ctx_.task(r).lane);
}

void Sweep::match() {
  matching_.partner.assign(ctx_.position.size(), -1);
  matching_.meeting.assign(ctx_.position.size(), -1);
  match_messages();
  match_collectives();
}

void Sweep::match_messages() {
  // A channel holds the messages of one tag from the ranks of one class to their peers. Both ends
  // use it in one lane each (lane-recomputed), so the k-th send meets the k-th receive. Sender and
  // receiver class, axis, offset as the sender sees it, tag.
  using Channel = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;
  struct Message {
    Channel channel;
    bool receive;
    int32_t task;
    bool operator<(const Message& o) const {
      return std::tie(channel, receive, task) < std::tie(o.channel, o.receive, o.task);
    }
  };
  std::vector<Message> list;
  const Program& p = ctx_.program;
  for (size_t c = 0; c < p.classes.size(); ++c) {
    const int32_t ci = static_cast<int32_t>(c);
    for (size_t i = 0; i < p.classes[c].tasks.size(); ++i) {
      const Task& t = p.classes[c].tasks[i];
      const KindInfo& k = ctx_.kind(t);
      if (!is_message(k)) continue;
      const int32_t other = p.peer_class(t, ci);
      const bool receive = is_receive(k);
      const int32_t offset = p.mesh.wrap(t.peer_axis, receive ? -int64_t{t.peer} : t.peer);
      list.push_back({{receive ? other : ci, receive ? ci : other, t.peer_axis, offset, t.tag},
                      receive,
                      ctx_.global(ci, static_cast<TaskId>(i))});
    }
  }
  num_messages_ = static_cast<int64_t>(list.size()) / 2;
  std::sort(list.begin(), list.end());
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin;
    while (end < list.size() && list[end].channel == list[begin].channel) {
      ++end;
    }
    size_t mid = begin;
    while (mid < end && !list[mid].receive) {
      ++mid;
    }
    const size_t sends = mid - begin, recvs = end - mid;
    for (size_t i = 0; i < std::max(sends, recvs); ++i) {
      if (i < sends && i < recvs) {
        const int32_t s = list[begin + i].task, r = list[mid + i].task;
        const TaskRef a = ctx_.ref(s), b = ctx_.ref(r);
        if (ctx_.kind(ctx_.task(a)).in == ctx_.kind(ctx_.task(b)).out) {
          matching_.partner[static_cast<size_t>(s)] = r;
          matching_.partner[static_cast<size_t>(r)] = s;
          continue;
        }
        ctx_.report(
            "message-type", ProblemClass::order, b, {a},
            fmt::format("{} expects {}, but {} sends {}", ctx_.name(b),
                        graph::to_string(ctx_.program.kind(ctx_.task(b)).out[0]), ctx_.name(a),
                        graph::to_string(ctx_.program.kind(ctx_.task(a)).in[0])),
            "give both ends the same type, tag and order");
        matching_.partner[static_cast<size_t>(s)] = r;
        matching_.partner[static_cast<size_t>(r)] = s;
        continue;
      }
      const bool send = i < sends;
      const TaskRef a = ctx_.ref(list[send ? begin + i : mid + i].task);
      const Task& t = ctx_.task(a);
      std::vector<TaskRef> others;  // the same tag or peer on the other side, unmatched or not
      const int32_t other = p.peer_class(t, a.cls);
      const auto& tasks = p.classes[static_cast<size_t>(other)].tasks;
      for (size_t k = 0; k < tasks.size() && others.size() < 2; ++k) {
        if (is_message(ctx_.kind(tasks[k])) && is_receive(ctx_.kind(tasks[k])) == send &&
            tasks[k].tag == t.tag) {
          others.push_back({other, static_cast<int32_t>(k)});
        }
      }
      ctx_.report(
          send ? "send-unmatched" : "recv-unmatched", ProblemClass::order, a, others,
          fmt::format("{} (tag {}) has no matching {} in class {}", ctx_.name(a), t.tag,
                      comm::message(send ? comm::Role::receive : comm::Role::send).name, other),
          send ? "add the recv, or remove the send" : "add the send, or remove the recv");
    }
    begin = end;
  }
}

void Sweep::match_collectives() {
  // A set of ranks is one group (group-once) and meets in one lane (lane-recomputed), where the
  // order of its collectives is that of the tasks. Ranks of a class run the same list and are in
  // step; over several classes, the k-th collective of each must be the same.
  const Program& p = ctx_.program;
  std::vector<std::vector<std::vector<int32_t>>> by_group(
      p.groups.size(), std::vector<std::vector<int32_t>>(p.classes.size()));
  for (size_t c = 0; c < p.classes.size(); ++c) {
    for (size_t i = 0; i < p.classes[c].tasks.size(); ++i) {
      const Task& t = p.classes[c].tasks[i];
      if (!is_collective(ctx_.kind(t))) continue;
      ++num_collectives_;
      by_group[static_cast<size_t>(t.group)][c].push_back(
          ctx_.global(static_cast<int32_t>(c), static_cast<TaskId>(i)));
    }
  }
  for (size_t g = 0; g < p.groups.size(); ++g) {
    const GroupInfo& info = ctx_.groups[g];
    if (!info.crosses_stages) continue;
    size_t most = 0;
    for (int32_t c : info.classes) {
      most = std::max(most, by_group[g][static_cast<size_t>(c)].size());
    }
    for (size_t k = 0; k < most; ++k) {
      Matching::Meeting m;
      std::vector<TaskRef> refs;
      int32_t absent = -1;
      for (int32_t c : info.classes) {
        const auto& list = by_group[g][static_cast<size_t>(c)];
        if (k < list.size()) {
          m.tasks.push_back(list[k]);
          refs.push_back(ctx_.ref(list[k]));
        } else {
          absent = c;
        }
      }
      if (absent >= 0) {
        m.complete = false;
        std::vector<TaskRef> last;  // of the class that has too few
        const auto& list = by_group[g][static_cast<size_t>(absent)];
        if (!list.empty()) {
          last.push_back(ctx_.ref(list.back()));
        }
        last.insert(last.end(), refs.begin(), refs.end());
        ctx_.report(
            "collective-unmatched", ProblemClass::order, refs[0], last,
            fmt::format("{} is number {} of its group, but class {} ({}) takes part in only "
                        "{}",
                        ctx_.name(refs[0]), k + 1, absent, ctx_.ranks_text(absent), list.size()),
            "let every member of the group run the same collectives");
      } else {
        for (const TaskRef& r : refs) {
          if (ctx_.task(r).kind != ctx_.task(refs[0]).kind) {
            m.complete = false;
            ctx_.report("collective-differs", ProblemClass::order, r, {refs[0]},
                        fmt::format("{} and {} are number {} of their group, but differ in op, "
                                    "attributes or sizes",
                                    ctx_.name(refs[0]), ctx_.name(r), k + 1),
                        "run the collectives of a group in the same order on every member");
            break;
          }
        }
      }
      for (int32_t t : m.tasks) {
        matching_.meeting[static_cast<size_t>(t)] = static_cast<int32_t>(matching_.meetings.size());
      }
      matching_.meetings.push_back(std::move(m));
    }
  }
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
    const TaskRef r = ctx_.ref(global);
    const Task& t = ctx_.task(r);
    const size_t lane = static_cast<size_t>(lane_index(global));
    Clock before = lane_clock[lane];
    for (TaskId d : t.deps) {
      const Clock& other = clock[static_cast<size_t>(ctx_.global(r.cls, d))];
      for (size_t i = 0; i < before.size(); ++i) {
        before[i] = std::max(before[i], other[i]);
      }
    }
    lost.clear();
    hazards.visit(r.cls, r.task, global, before, &lost);
    if (values) {
      for (BufferId b : lost) {
        values->lose(r.cls, b);
      }
    }
    ++before[static_cast<size_t>(t.lane)];
    clock[static_cast<size_t>(global)] = lane_clock[lane] = before;
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
      const TaskRef r = ctx_.ref(global);
      const bool receive = is_receive(ctx_.kind(ctx_.task(r)));
      values->step(r.cls, r.task, global,
                   receive ? matching_.partner[static_cast<size_t>(global)] : -1);
    }
  });
  if (ended) return true;
  const std::vector<AbstractRun::Cycle> cycles = lanes.cycles();
  for (const AbstractRun::Cycle& c : cycles) {
    ctx_.report("deadlock", ProblemClass::order, c.tasks[0], c.tasks, c.text,
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

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
  partner_.assign(ctx_.position.size(), -1);
  meeting_.assign(ctx_.position.size(), -1);
  match_messages();
  match_collectives();
}

void Sweep::match_messages() {
  // Sender and receiver class, axis, offset as the sender sees it, tag.
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
      const OpClass op = ctx_.kind(t).op_class;
      if (!is_message(op)) continue;
      const int32_t other = p.peer_class(t, ci);
      const bool receive = op == OpClass::recv;
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
    while (end < list.size() && list[end].channel == list[begin].channel) ++end;
    size_t mid = begin;
    while (mid < end && !list[mid].receive) ++mid;
    const size_t sends = mid - begin, recvs = end - mid;
    for (size_t i = begin; i < end; ++i) {
      const size_t first = list[i].receive ? mid : begin;
      if (lane_index(list[i].task) == lane_index(list[first].task)) continue;
      const TaskRef a = ctx_.ref(list[first].task), b = ctx_.ref(list[i].task);
      ctx_.report("message-order", ProblemClass::order, b, {a},
                  fmt::format("{} and {} use one peer and tag in two lanes: which message comes "
                              "first is not determined",
                              ctx_.name(a), ctx_.name(b)),
                  "use one lane per peer and tag");
    }
    for (size_t i = 0; i < std::max(sends, recvs); ++i) {
      if (i < sends && i < recvs) {
        const int32_t s = list[begin + i].task, r = list[mid + i].task;
        const TaskRef a = ctx_.ref(s), b = ctx_.ref(r);
        if (ctx_.kind(ctx_.task(a)).in == ctx_.kind(ctx_.task(b)).out) {
          partner_[static_cast<size_t>(s)] = r;
          partner_[static_cast<size_t>(r)] = s;
          continue;
        }
        ctx_.report(
            "message-type", ProblemClass::order, b, {a},
            fmt::format("{} expects {}, but {} sends {}", ctx_.name(b),
                        graph::to_string(ctx_.program.kind(ctx_.task(b)).out[0]), ctx_.name(a),
                        graph::to_string(ctx_.program.kind(ctx_.task(a)).in[0])),
            "give both ends the same type, tag and order");
        partner_[static_cast<size_t>(s)] = r;
        partner_[static_cast<size_t>(r)] = s;
        continue;
      }
      const bool send = i < sends;
      const TaskRef a = ctx_.ref(list[send ? begin + i : mid + i].task);
      const Task& t = ctx_.task(a);
      std::vector<TaskRef> others;  // the same tag or peer on the other side, unmatched or not
      const int32_t other = p.peer_class(t, a.cls);
      const auto& tasks = p.classes[static_cast<size_t>(other)].tasks;
      for (size_t k = 0; k < tasks.size() && others.size() < 2; ++k)
        if (is_message(ctx_.kind(tasks[k]).op_class) &&
            (ctx_.kind(tasks[k]).op_class == OpClass::recv) == send && tasks[k].tag == t.tag)
          others.push_back({other, static_cast<int32_t>(k)});
      ctx_.report(send ? "send-unmatched" : "recv-unmatched", ProblemClass::order, a, others,
                  fmt::format("{} (tag {}) has no matching {} in class {}", ctx_.name(a), t.tag,
                              send ? "recv" : "send", other),
                  send ? "add the recv, or remove the send" : "add the send, or remove the recv");
    }
    begin = end;
  }
}

void Sweep::match_collectives() {
  const Program& p = ctx_.program;
  std::vector<std::vector<std::vector<int32_t>>> by_group(
      p.groups.size(), std::vector<std::vector<int32_t>>(p.classes.size()));
  for (size_t c = 0; c < p.classes.size(); ++c) {
    for (size_t i = 0; i < p.classes[c].tasks.size(); ++i) {
      const Task& t = p.classes[c].tasks[i];
      if (!is_collective(ctx_.kind(t).op_class)) continue;
      ++num_collectives_;
      auto& list = by_group[static_cast<size_t>(t.group)][c];
      const int32_t global = ctx_.global(static_cast<int32_t>(c), static_cast<TaskId>(i));
      if (!list.empty() && lane_index(list[0]) != lane_index(global)) {
        const TaskRef a = ctx_.ref(list[0]), b = ctx_.ref(global);
        ctx_.report("group-lane", ProblemClass::order, b, {a},
                    fmt::format("{} and {} use one group in two lanes: ranks may disagree on their "
                                "order",
                                ctx_.name(a), ctx_.name(b)),
                    "put all collectives of a group in one lane");
      }
      list.push_back(global);
    }
  }
  for (size_t g = 0; g < p.groups.size(); ++g) {
    const GroupInfo& info = ctx_.groups[g];
    if (!info.crosses_stages) continue;
    size_t most = 0;
    for (int32_t c : info.classes)
      most = std::max(most, by_group[g][static_cast<size_t>(c)].size());
    for (size_t k = 0; k < most; ++k) {
      Meeting m;
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
        if (!list.empty()) last.push_back(ctx_.ref(list.back()));
        last.insert(last.end(), refs.begin(), refs.end());
        ctx_.report(
            "collective-unmatched", ProblemClass::order, refs[0], last,
            fmt::format("{} is number {} of its group, but class {} ({}) takes part in only "
                        "{}",
                        ctx_.name(refs[0]), k + 1, absent, ctx_.ranks_text(absent), list.size()),
            "let every member of the group run the same collectives");
      } else {
        for (const TaskRef& r : refs)
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
      for (int32_t t : m.tasks)
        meeting_[static_cast<size_t>(t)] = static_cast<int32_t>(meetings_.size());
      meetings_.push_back(std::move(m));
    }
  }
}

bool Sweep::run(Hazards& hazards, Values* values) {
  const Program& p = ctx_.program;
  const size_t num_lanes = p.classes.size() * kNumLanes, total = ctx_.position.size();
  std::vector<uint8_t> done(total, 0);
  std::vector<Clock> clock(total);
  std::vector<Clock> lane_clock(num_lanes, Clock{});
  std::vector<int32_t> head(num_lanes, 0);
  std::vector<int32_t> first_waiter(total, -1), next_waiter(num_lanes, -1);
  std::vector<uint8_t> at_meeting(num_lanes, 0);
  // Lanes that may go on, per class. Of these the one with the earliest task in issue order does: a
  // forgotten dependency then shows as the race that it is.
  std::vector<uint32_t> ready(p.classes.size(), (1u << kNumLanes) - 1);
  auto wake = [&](int32_t lane) {
    ready[static_cast<size_t>(lane / kNumLanes)] |= 1u << (lane % kNumLanes);
  };
  std::vector<BufferId> lost;
  size_t finished = 0;

  auto finish = [&](int32_t global, const Task& t, int32_t cls, TaskId task, Clock before) {
    const size_t l = static_cast<size_t>(cls) * kNumLanes + static_cast<size_t>(t.lane);
    lost.clear();
    hazards.visit(cls, task, global, before, &lost);
    if (values)
      for (BufferId b : lost) values->lose(cls, b);
    ++before[static_cast<size_t>(t.lane)];
    clock[static_cast<size_t>(global)] = lane_clock[l] = before;
    ++head[l];
    ++finished;
    done[static_cast<size_t>(global)] = 1;
    for (int32_t w = first_waiter[static_cast<size_t>(global)]; w >= 0;
         w = next_waiter[static_cast<size_t>(w)])
      wake(w);
  };
  auto known_before = [&](int32_t cls, const Task& t) {
    const size_t l = static_cast<size_t>(cls) * kNumLanes + static_cast<size_t>(t.lane);
    Clock c = lane_clock[l];
    for (TaskId d : t.deps) {
      const Clock& other = clock[static_cast<size_t>(ctx_.global(cls, d))];
      for (size_t i = 0; i < c.size(); ++i) c[i] = std::max(c[i], other[i]);
    }
    return c;
  };
  auto wait_for = [&](int32_t lane, int32_t global) {
    next_waiter[static_cast<size_t>(lane)] = first_waiter[static_cast<size_t>(global)];
    first_waiter[static_cast<size_t>(global)] = lane;
  };

  std::vector<TaskRef> refs;
  // Runs the next task of a lane; false if the lane has to wait or is at its end.
  auto advance = [&](int32_t lane) {
    const int32_t cls = lane / kNumLanes;
    const auto& tasks = ctx_.lanes[static_cast<size_t>(cls)][static_cast<size_t>(lane % kNumLanes)];
    const TaskId task = tasks[static_cast<size_t>(head[static_cast<size_t>(lane)])];
    const Task& t = p.classes[static_cast<size_t>(cls)].tasks[static_cast<size_t>(task)];
    const int32_t global = ctx_.global(cls, task);
    int32_t blocker = -1;
    for (TaskId d : t.deps)
      if (!done[static_cast<size_t>(ctx_.global(cls, d))]) blocker = ctx_.global(cls, d);
    const bool receive = ctx_.kind(t).op_class == OpClass::recv;
    const int32_t sender = receive ? partner_[static_cast<size_t>(global)] : -1;
    if (blocker < 0 && sender >= 0 && !done[static_cast<size_t>(sender)]) blocker = sender;
    if (blocker >= 0) {
      wait_for(lane, blocker);
      return false;
    }
    if (receive && sender < 0) return false;  // reported as unmatched; waits for ever
    const int32_t m = meeting_[static_cast<size_t>(global)];
    if (m < 0) {
      finish(global, t, cls, task, known_before(cls, t));
      if (values) values->step(cls, task, global, sender);
      return true;
    }
    Meeting& meeting = meetings_[static_cast<size_t>(m)];
    if (!at_meeting[static_cast<size_t>(lane)]) {
      at_meeting[static_cast<size_t>(lane)] = 1;
      ++meeting.arrived;
    }
    if (!meeting.complete || meeting.arrived < meeting.tasks.size()) return false;
    refs.clear();
    for (int32_t g : meeting.tasks) {
      const TaskRef r = ctx_.ref(g);
      refs.push_back(r);
      at_meeting[static_cast<size_t>(lane_index(g))] = 0;
      finish(g, ctx_.task(r), r.cls, r.task, known_before(r.cls, ctx_.task(r)));
      wake(lane_index(g));
    }
    if (values) values->meet(refs);
    return true;
  };
  for (bool any = true; any;) {
    any = false;
    for (size_t c = 0; c < p.classes.size(); ++c) {
      while (ready[c]) {
        int32_t best = -1;
        TaskId first = std::numeric_limits<TaskId>::max();
        for (int l = 0; l < kNumLanes; ++l) {
          if (!(ready[c] >> l & 1)) continue;
          const auto& tasks = ctx_.lanes[c][static_cast<size_t>(l)];
          const size_t h = static_cast<size_t>(head[c * kNumLanes + static_cast<size_t>(l)]);
          if (h >= tasks.size()) {
            ready[c] &= ~(1u << l);
          } else if (tasks[h] < first) {
            first = tasks[h];
            best = l;
          }
        }
        if (best < 0) break;
        if (advance(static_cast<int32_t>(c) * kNumLanes + best))
          any = true;
        else
          ready[c] &= ~(1u << best);
      }
    }
  }
  if (finished == total) return true;
  report_stuck(head, done);
  return false;
}

/// Follows what each stuck lane waits for until a lane comes up twice: that is the cycle.
void Sweep::report_stuck(const std::vector<int32_t>& head, const std::vector<uint8_t>& done) {
  const size_t num_lanes = head.size();
  auto head_task = [&](size_t lane) {
    const int32_t cls = static_cast<int32_t>(lane) / kNumLanes;
    const auto& tasks = ctx_.lanes[static_cast<size_t>(cls)][lane % kNumLanes];
    const size_t h = static_cast<size_t>(head[lane]);
    return h < tasks.size() ? ctx_.global(cls, tasks[h]) : -1;
  };
  struct Wait {
    int32_t target = -1;  ///< global task waited for
    const char* why = "";
  };
  auto waits_for = [&](int32_t global) {
    const TaskRef r = ctx_.ref(global);
    for (TaskId d : ctx_.task(r).deps) {
      const int32_t g = ctx_.global(r.cls, d);
      if (!done[static_cast<size_t>(g)]) return Wait{g, "depends on"};
    }
    if (ctx_.kind(ctx_.task(r)).op_class == OpClass::recv) {
      const int32_t s = partner_[static_cast<size_t>(global)];
      if (s >= 0 && !done[static_cast<size_t>(s)]) return Wait{s, "receives from"};
    }
    if (const int32_t m = meeting_[static_cast<size_t>(global)]; m >= 0) {
      const Meeting& meeting = meetings_[static_cast<size_t>(m)];
      if (meeting.complete)
        for (int32_t g : meeting.tasks)
          if (g != head_task(static_cast<size_t>(lane_index(g)))) return Wait{g, "meets"};
    }
    return Wait{};
  };

  std::vector<uint8_t> colour(num_lanes, 0);  // 1: on the current path, 2: done with
  bool cycle_found = false;
  for (size_t start = 0; start < num_lanes; ++start) {
    if (head_task(start) < 0 || colour[start]) continue;
    std::vector<size_t> path;
    std::vector<Wait> waits;
    size_t lane = start;
    while (true) {
      colour[lane] = 1;
      path.push_back(lane);
      const Wait w = waits_for(head_task(lane));
      waits.push_back(w);
      if (w.target < 0) break;
      const size_t next = static_cast<size_t>(lane_index(w.target));
      if (colour[next] == 2) break;
      if (colour[next] == 1) {
        const size_t from =
            static_cast<size_t>(std::find(path.begin(), path.end(), next) - path.begin());
        std::vector<TaskRef> related;
        std::string text = "deadlock: ";
        for (size_t i = from; i < path.size(); ++i) {
          const TaskRef at = ctx_.ref(head_task(path[i])), on = ctx_.ref(waits[i].target);
          related.push_back(at);
          related.push_back(on);
          if (i - from < 6)
            text += fmt::format("{}{} {} {}", i > from ? "; " : "", ctx_.name(at), waits[i].why,
                                ctx_.name(on));
          const TaskRef ahead = ctx_.ref(head_task(i + 1 < path.size() ? path[i + 1] : next));
          if (!(ahead == on) && i - from < 6)
            text += fmt::format(", which is behind {} in its lane", ctx_.name(ahead));
        }
        cycle_found = true;
        ctx_.report("deadlock", ProblemClass::order, related[0], related, text,
                    "reorder the tasks or remove one of these waits");
        break;
      }
      lane = next;
    }
    for (size_t l : path) colour[l] = 2;
  }
  if (cycle_found || ctx_.problems.count > 0) return;
  ctx_.report("deadlock", ProblemClass::order, {}, {}, "some tasks can never start",
              "look for tasks that wait for each other");
}

}  // namespace hocket::check

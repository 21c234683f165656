// SPDX-License-Identifier: Apache-2.0
#include "check/abstract_run.h"

#include <fmt/format.h>

#include <algorithm>

namespace hocket::check {

using program::kNumLanes;

AbstractRun::AbstractRun(const Context& ctx, const Matching& matching, SendMode sends)
    : ctx_(ctx), matching_(matching), sends_(sends) {
  const size_t classes = ctx.program.classes.size();
  const size_t tasks = ctx.position.size();
  const size_t lanes = classes * kNumLanes;
  done_.assign(tasks, 0);
  head_.assign(lanes, 0);
  arrived_.assign(lanes, 0);
  first_waiter_.assign(tasks, -1);
  next_waiter_.assign(lanes, -1);
  ready_.assign(classes, (1u << kNumLanes) - 1);
}

int32_t AbstractRun::lane_index(int32_t task) const {
  return ctx_.task_class[task].value() * kNumLanes + ctx_.lane_of[task];
}

int32_t AbstractRun::head_task(int32_t lane) const {
  const ClassId cls = lane / kNumLanes;
  const auto& tasks = ctx_.lanes[cls][lane % kNumLanes];
  const size_t done = static_cast<size_t>(head_[lane]);
  return done < tasks.size() ? ctx_.global(cls, tasks[done]) : -1;
}

bool AbstractRun::is_rendezvous(int32_t task) const {
  return sends_ == SendMode::rendezvous && is_message(ctx_.kind(ctx_.task(ctx_.ref(task))));
}

void AbstractRun::wake(int32_t lane) { ready_[lane / kNumLanes] |= 1u << (lane % kNumLanes); }

/// Prefers issue order, so that a forgotten dependency shows as a race, not as a strange schedule.
int32_t AbstractRun::next_lane(size_t cls) {
  int32_t best = -1;
  int32_t first = std::numeric_limits<int32_t>::max();
  for (int32_t l = 0; l < kNumLanes; ++l) {
    if (!(ready_[cls] >> l & 1)) continue;
    const int32_t lane = static_cast<int32_t>(cls) * kNumLanes + l;
    const int32_t task = head_task(lane);
    if (task < 0) {
      ready_[cls] &= ~(1u << l);
    } else if (task < first) {
      first = task;
      best = lane;
    }
  }
  return best;
}

void AbstractRun::end(int32_t task) {
  const int32_t lane = lane_index(task);
  ++head_[lane];
  arrived_[lane] = 0;
  ++finished_;
  done_[task] = 1;
  wake(lane);
  for (int32_t waiter = first_waiter_[task]; waiter >= 0; waiter = next_waiter_[waiter]) {
    wake(waiter);
  }
  ended_.push_back(task);
}

bool AbstractRun::has_arrived(int32_t task) const {
  const int32_t lane = lane_index(task);
  return arrived_[lane] && head_task(lane) == task;
}

const Matching::CollectiveMatch* AbstractRun::advance(int32_t lane) {
  // A task ends when its dependencies have ended, and in addition
  //   a receive:  when its sends have ended (sends complete alone), or with them (sends wait);
  //   a send:     at once, or with its receives;
  //   a collective over several classes: with the tasks of all other classes.
  // A lane that waits for one task registers in that task's list, and is woken by its end. A lane
  // that waits for partners sets `arrived_`; the last partner to arrive ends them all.
  ended_.clear();
  ready_[lane / kNumLanes] &= ~(1u << (lane % kNumLanes));
  const int32_t task = head_task(lane);
  const TaskRef ref = ctx_.ref(task);
  const Task& next = ctx_.task(ref);
  const auto wait_for = [&](int32_t other) {
    next_waiter_[lane] = first_waiter_[other];
    first_waiter_[other] = lane;
    return nullptr;
  };
  int32_t blocker = -1;
  for (TaskId dep : next.deps) {
    if (!done_[ctx_.global(ref.cls, dep)]) {
      blocker = ctx_.global(ref.cls, dep);
    }
  }
  if (blocker >= 0) return wait_for(blocker);

  const KindInfo& info = ctx_.kind(next);
  if (is_message(info)) {
    const std::span<const int32_t> others = matching_.partners(task);
    const bool receive = is_receive(info);
    if (others.empty() && (receive || sends_ == SendMode::rendezvous)) {
      return nullptr;  // reported as unmatched; waits forever
    }
    if (sends_ == SendMode::eager) {
      for (int32_t other : others) {
        if (receive && !done_[other]) return wait_for(other);
      }
      end(task);
      return nullptr;
    }
    arrived_[lane] = 1;
    end_message(task);
    return nullptr;
  }
  const int32_t match_id = matching_.collective[task];
  if (match_id < 0) {
    end(task);
    return nullptr;
  }
  const Matching::CollectiveMatch& all = matching_.collectives[match_id];
  arrived_[lane] = 1;
  if (!all.complete) return nullptr;
  for (int32_t other : all.tasks) {
    if (!has_arrived(other)) return nullptr;
  }
  for (int32_t other : all.tasks) {
    end(other);
  }
  return &all;
}

/// Ends both ends of a message, and all messages that share an end with it, once all ends have
/// arrived. Sends end first.
void AbstractRun::end_message(int32_t task) {
  std::vector<int32_t> ends{task};
  for (size_t i = 0; i < ends.size(); ++i) {
    if (!has_arrived(ends[i])) return;
    for (int32_t other : matching_.partners(ends[i])) {
      if (std::find(ends.begin(), ends.end(), other) == ends.end()) {
        ends.push_back(other);
      }
    }
  }
  for (const bool receives : {false, true}) {
    for (int32_t other : ends) {
      if (is_receive(ctx_.kind(ctx_.task(ctx_.ref(other)))) == receives) {
        end(other);
      }
    }
  }
}

AbstractRun::Wait AbstractRun::waits_for(int32_t task) const {
  const TaskRef ref = ctx_.ref(task);
  const Task& waiting = ctx_.task(ref);
  for (TaskId dep : waiting.deps) {
    const int32_t before = ctx_.global(ref.cls, dep);
    if (!done_[before]) return {before, "depends on"};
  }
  for (int32_t other : matching_.partners(task)) {
    if (done_[other] || (is_rendezvous(task) && has_arrived(other))) continue;
    if (is_receive(ctx_.kind(waiting))) return {other, "receives from"};
    if (is_rendezvous(task)) return {other, "waits for its receiver"};
  }
  const int32_t match_id = matching_.collective[task];
  if (match_id < 0) return {};
  const Matching::CollectiveMatch& all = matching_.collectives[match_id];
  if (!all.complete) return {};
  for (int32_t member : all.tasks) {
    if (!has_arrived(member)) return {member, "meets"};
  }
  return {};
}

std::vector<AbstractRun::Cycle> AbstractRun::cycles() const {
  // Every stuck lane waits, at its head, for a task of another lane, and so for the head of that
  // lane. A path of such waits ends in one of three ways: at a lane without a possible partner
  // (reported elsewhere), at a lane visited before, or at a lane of the path. The last is a cycle.
  const int32_t num_lanes = static_cast<int32_t>(head_.size());
  std::vector<uint8_t> colour(head_.size(), 0);  // 1: on the current path, 2: finished
  std::vector<Cycle> found;
  for (int32_t start = 0; start < num_lanes; ++start) {
    if (head_task(start) < 0 || colour[start]) continue;
    std::vector<int32_t> path;
    std::vector<Wait> waits;
    int32_t lane = start;
    while (true) {
      colour[lane] = 1;
      path.push_back(lane);
      const Wait wait = waits_for(head_task(lane));
      waits.push_back(wait);
      if (wait.target < 0) break;
      const int32_t next = lane_index(wait.target);
      if (colour[next] == 2) break;
      if (colour[next] == 1) {
        const size_t from =
            static_cast<size_t>(std::find(path.begin(), path.end(), next) - path.begin());
        Cycle cycle;
        cycle.text = "deadlock: ";
        for (size_t i = from; i < path.size(); ++i) {
          const TaskRef at = ctx_.ref(head_task(path[i]));
          const TaskRef on = ctx_.ref(waits[i].target);
          cycle.tasks.push_back(at);
          cycle.tasks.push_back(on);
          if (i - from >= 6) continue;
          cycle.text += fmt::format("{}{} {} {}", i > from ? "; " : "", ctx_.name(at), waits[i].why,
                                    ctx_.name(on));
          const TaskRef ahead = ctx_.ref(head_task(i + 1 < path.size() ? path[i + 1] : next));
          if (!(ahead == on)) {
            cycle.text += fmt::format(", which is behind {} in its lane", ctx_.name(ahead));
          }
        }
        found.push_back(std::move(cycle));
        break;
      }
      lane = next;
    }
    for (int32_t followed : path) {
      colour[followed] = 2;
    }
  }
  return found;
}

}  // namespace hocket::check

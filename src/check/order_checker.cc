// SPDX-License-Identifier: Apache-2.0
#include "check/order_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace hocket::check {

using program::kNumLanes;

int32_t OrderChecker::lane_index(int32_t global) const {
  const TaskRef ref = ctx_.ref(global);
  return ref.cls.value() * kNumLanes + static_cast<int32_t>(ctx_.task(ref).lane);
}

void OrderChecker::match() {
  matching_.partner.assign(ctx_.position.size(), -1);
  matching_.collective.assign(ctx_.position.size(), -1);
  match_messages();
  match_collectives();
}

/// One end of a message. A channel (peer mapping of the sender, tag) has the messages of one tag
/// that one mapping sends among the ranks of a role.
struct OrderChecker::Message {
  std::pair<int32_t, int32_t> channel;
  bool receive;
  int32_t task;
  bool operator<(const Message& other) const {
    return std::tie(channel, receive, task) < std::tie(other.channel, other.receive, other.task);
  }
};

const std::vector<ClassId>& OrderChecker::peers(ClassId cls, const program::PeerMap& peer_map) {
  const auto [known, fresh] = peers_.try_emplace({cls, peer_map});
  if (fresh) {
    known->second = ctx_.program.peer_classes(cls, peer_map);
  }
  return known->second;
}

void OrderChecker::match_messages() {
  // Sorting makes a channel a run of its sends, then of its receives, each in issue order.
  std::vector<Message> list;
  const Program& program = ctx_.program;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (size_t i = 0; i < program.classes[cls].tasks.size(); ++i) {
      const Task& task = program.classes[cls].tasks[i];
      const KindInfo& info = ctx_.kind(task);
      if (!is_message(info)) continue;
      const bool receive = is_receive(info);
      const int32_t peer_map = ctx_.peer_maps.number(program.classes[cls].role, task.peer_map());
      list.push_back({{receive ? ctx_.peer_maps.inverse(peer_map) : peer_map, task.tag},
                      receive,
                      ctx_.global(cls, i)});
    }
  }
  num_messages_ = static_cast<int64_t>(list.size()) / 2;
  std::sort(list.begin(), list.end());
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin;
    while (end < list.size() && list[end].channel == list[begin].channel) {
      ++end;
    }
    match_channel(std::span(list).subspan(begin, end - begin));
    begin = end;
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    report_shared_tags(cls);
  }
}

void OrderChecker::report_shared_tags(ClassId cls) {
  // Between two ranks, messages of one tag are matched by order, whichever mapping they name.
  // Pairing treats each mapping by itself, so a tag must not reach one peer by two mappings.
  const RankClass& rank_class = ctx_.program.classes[cls];
  const int32_t first_rank = ctx_.program.first_rank(rank_class.role);
  std::map<int32_t, std::map<int32_t, TaskId>> maps_of_tag;  // with the first task of each mapping
  for (size_t i = 0; i < rank_class.tasks.size(); ++i) {
    const Task& task = rank_class.tasks[i];
    if (!is_message(ctx_.kind(task)) || is_receive(ctx_.kind(task))) continue;
    const int32_t peer_map = ctx_.peer_maps.number(rank_class.role, task.peer_map());
    std::map<int32_t, TaskId>& others = maps_of_tag[task.tag];
    if (!others.emplace(peer_map, i).second) continue;
    for (const auto& [other, sent] : others) {
      if (other == peer_map) continue;
      for (const int32_t rank : ctx_.program.ranks_of(cls)) {
        const size_t place = static_cast<size_t>(rank - first_rank);
        const int32_t peer = ctx_.peer_maps.peers(peer_map)[place];
        if (peer != ctx_.peer_maps.peers(other)[place]) continue;
        ctx_.report(
            "tag-shared", ProblemClass::order, {cls, i}, {{cls, sent}},
            fmt::format(
                "{} and {} have tag {} and go different ways, which both lead rank {} to rank {}",
                ctx_.name({cls, i}), ctx_.name({cls, sent}), task.tag, rank, first_rank + peer),
            "give each its own tag");
        break;
      }
    }
  }
}

void OrderChecker::match_channel(std::span<const Message> ends) {
  // A rank uses a channel in one lane (lane-recomputed), so its k-th send meets the k-th receive
  // of its peer. All ranks of a class run one list. If peers are of several classes, each class
  // must have a k-th receive; likewise, every class from which a class receives must have a k-th
  // send.
  std::map<ClassId, std::vector<int32_t>> sends;
  std::map<ClassId, std::vector<int32_t>> receives;
  for (const Message& message : ends) {
    (message.receive ? receives : sends)[ctx_.task_class[message.task]].push_back(message.task);
  }
  for (const auto& [cls, tasks] : sends) {
    for (ClassId other : peers(cls, ctx_.task(ctx_.ref(tasks[0])).peer_map())) {
      const auto found = receives.find(other);
      const size_t n = found == receives.end() ? 0 : std::min(tasks.size(), found->second.size());
      for (size_t k = 0; k < n; ++k) {
        pair(tasks[k], found->second[k]);
      }
      for (size_t k = n; k < tasks.size(); ++k) {
        report_unmatched(tasks[k], true, other);
      }
    }
  }
  for (const auto& [cls, tasks] : receives) {
    for (ClassId other : peers(cls, ctx_.task(ctx_.ref(tasks[0])).peer_map())) {
      const auto found = sends.find(other);
      const size_t n = found == sends.end() ? 0 : found->second.size();
      for (size_t k = n; k < tasks.size(); ++k) {
        report_unmatched(tasks[k], false, other);
      }
    }
  }
}

void OrderChecker::partner(int32_t task, int32_t other) {
  int32_t& only = matching_.partner[task];
  if (only == -1) {
    only = other;
    return;
  }
  std::vector<int32_t>& all = matching_.several[task];
  if (only >= 0) {
    all.push_back(only);
    only = Matching::kSeveral;
  }
  all.push_back(other);
}

void OrderChecker::pair(int32_t send, int32_t receive) {
  partner(send, receive);
  partner(receive, send);
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

void OrderChecker::report_unmatched(int32_t message, bool send, ClassId other) {
  // Names up to two messages of the same tag on the other side, paired or not.
  const TaskRef ref = ctx_.ref(message);
  const Task& task = ctx_.task(ref);
  std::vector<TaskRef> others;
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

/// Returns the connected components of sorts of instances that share classes, each with its
/// classes.
static std::vector<std::pair<std::vector<ClassId>, std::vector<std::vector<ClassId>>>> connected(
    std::vector<std::vector<ClassId>> sorts) {
  std::vector<std::pair<std::vector<ClassId>, std::vector<std::vector<ClassId>>>> parts;
  while (!sorts.empty()) {
    std::set<ClassId> classes(sorts.back().begin(), sorts.back().end());
    auto& [all, mine] = parts.emplace_back();
    for (bool more = true; more;) {
      more = false;
      for (auto& sort : sorts) {
        const bool touches = std::any_of(sort.begin(), sort.end(),
                                         [&](ClassId cls) { return classes.contains(cls); });
        if (!touches) continue;
        more = true;
        classes.insert(sort.begin(), sort.end());
        mine.push_back(std::move(sort));
        sort.clear();
      }
      std::erase_if(sorts, [](const auto& sort) { return sort.empty(); });
    }
    all.assign(classes.begin(), classes.end());
  }
  return parts;
}

void OrderChecker::match_collectives() {
  // A set of ranks is one group (group-once) and meets in one lane (lane-recomputed), in task
  // order. Ranks of one class run one list, so they agree. Across classes, the k-th collective of
  // each must agree. Sorts of instances that share a class are matched together, since they share
  // its task.
  const Program& program = ctx_.program;
  std::vector<ByClass> by_group(program.groups.size(), ByClass(program.classes.size()));
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (size_t i = 0; i < program.classes[cls].tasks.size(); ++i) {
      const Task& task = program.classes[cls].tasks[i];
      if (!is_collective(ctx_.kind(task))) continue;
      ++num_collectives_;
      by_group[task.group][cls].push_back(ctx_.global(cls, i));
    }
  }
  for (size_t group = 0; group < program.groups.size(); ++group) {
    for (const auto& [classes, sorts] : connected(ctx_.groups[group].meetings)) {
      if (classes.size() == 1) continue;
      size_t most = 0;
      for (ClassId cls : classes) {
        most = std::max(most, by_group[group][cls].size());
      }
      for (size_t k = 0; k < most; ++k) {
        Matching::CollectiveMatch matched = match_collectives(classes, sorts, k, by_group[group]);
        for (int32_t task : matched.tasks) {
          matching_.collective[task] = static_cast<int32_t>(matching_.collectives.size());
        }
        matching_.collectives.push_back(std::move(matched));
      }
    }
  }
}

/// Refuses a transfer unless all ranks of one role give and all of the other take.
void OrderChecker::check_sides(const std::vector<TaskRef>& refs,
                               Matching::CollectiveMatch* matched) {
  const auto gives = [&](TaskRef ref) { return !ctx_.task(ref).in.empty(); };
  const auto role = [&](TaskRef ref) { return ctx_.program.classes[ref.cls].role; };
  for (const TaskRef& ref : refs) {
    if ((gives(ref) == gives(refs[0])) == (role(ref) == role(refs[0]))) continue;
    matched->complete = false;
    ctx_.report("collective-differs", ProblemClass::order, ref, {refs[0]},
                fmt::format("{} and {} are one transfer, in which both {}", ctx_.name(refs[0]),
                            ctx_.name(ref), gives(ref) ? "give" : "take"),
                "let the ranks of one role give and those of the other take");
    return;
  }
}

Matching::CollectiveMatch OrderChecker::match_collectives(
    const std::vector<ClassId>& classes, const std::vector<std::vector<ClassId>>& sorts, size_t k,
    const ByClass& by_class) {
  Matching::CollectiveMatch matched;
  std::vector<TaskRef> refs;
  ClassId absent = program::kNone;
  for (ClassId cls : classes) {
    const auto& list = by_class[cls];
    if (k < list.size()) {
      matched.tasks.push_back(list[k]);
      refs.push_back(ctx_.ref(list[k]));
    } else {
      absent = cls;
    }
  }
  if (absent >= 0) {
    matched.complete = false;
    const auto& list = by_class[absent];
    std::vector<TaskRef> related;  // the last collective of the class with too few comes first
    if (!list.empty()) {
      related.push_back(ctx_.ref(list.back()));
    }
    related.insert(related.end(), refs.begin(), refs.end());
    ctx_.report(
        "collective-unmatched", ProblemClass::order, refs[0], related,
        fmt::format("{} is number {} of its group, but class {} ({}) takes part in only {}",
                    ctx_.name(refs[0]), k + 1, absent, ctx_.ranks_text(absent), list.size()),
        "let every member of the group run the same collectives");
    return matched;
  }
  for (const TaskRef& ref : refs) {
    const bool same = ctx_.task(ref).kind == ctx_.task(refs[0]).kind;
    if (!same && !program::may_meet(ctx_.program.kind(ctx_.task(ref)),
                                    ctx_.program.kind(ctx_.task(refs[0])))) {
      matched.complete = false;
      ctx_.report("collective-differs", ProblemClass::order, ref, {refs[0]},
                  fmt::format("{} and {} are number {} of their group, but differ in op, "
                              "attributes or sizes",
                              ctx_.name(refs[0]), ctx_.name(ref), k + 1),
                  "run the collectives of a group in the same order on every member");
      break;
    }
  }
  if (matched.complete && is_transfer(ctx_.kind(ctx_.task(refs[0])))) {
    check_sides(refs, &matched);
  }
  for (const std::vector<ClassId>& sort : sorts) {
    std::vector<int32_t>& instance = matched.instances.emplace_back();
    for (ClassId cls : sort) {
      instance.push_back(by_class[cls][k]);
    }
  }
  return matched;
}

bool OrderChecker::run(Hazards& hazards, Interpreter* interpreter) {
  // One run, with sends that complete alone, gives the order of visits. Each task is checked for
  // hazards first, under its vector clock (of its lane, joined with those of its dependencies),
  // then interpreted. Overwritten buffers become unknown to the interpreter. Messages add no order
  // between ranks to the clocks, so the result holds for every transport.
  const size_t num_lanes = ctx_.program.classes.size() * kNumLanes;
  std::vector<Clock> clock(ctx_.position.size());
  std::vector<Clock> lane_clock(num_lanes, Clock{});
  std::vector<BufferId> lost;
  std::vector<std::vector<TaskRef>> instances;
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
    if (interpreter) {
      for (BufferId buffer : lost) {
        interpreter->invalidate(ref.cls, buffer);
      }
    }
    ++before[place_of(task.lane)];
    lane_clock[lane] = before;
    clock[global] = before;
  };
  AbstractRun lanes(ctx_, matching_, SendMode::eager);
  const bool ended =
      lanes.run([&](std::span<const int32_t> tasks, const Matching::CollectiveMatch* matched) {
        for (int32_t global : tasks) {
          look_at(global);
        }
        if (!interpreter) return;
        if (matched) {
          instances.clear();
          for (const std::vector<int32_t>& instance : matched->instances) {
            std::vector<TaskRef>& refs = instances.emplace_back();
            for (int32_t global : instance) {
              refs.push_back(ctx_.ref(global));
            }
          }
          return interpreter->step_across_classes(instances);
        }
        for (int32_t global : tasks) {
          const TaskRef ref = ctx_.ref(global);
          const bool receive = is_receive(ctx_.kind(ctx_.task(ref)));
          interpreter->step(ref.cls, ref.task, global,
                            receive ? matching_.partners(global) : std::span<const int32_t>());
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

std::string OrderChecker::stuck_when_sends_wait() const {
  AbstractRun lanes(ctx_, matching_, SendMode::rendezvous);
  if (lanes.run([](std::span<const int32_t>, const Matching::CollectiveMatch*) {})) return "";
  const std::vector<AbstractRun::Cycle> cycles = lanes.cycles();
  return cycles.empty() ? "some tasks can never start" : cycles[0].text;
}

}  // namespace hocket::check

// SPDX-License-Identifier: Apache-2.0
// The event loop. One heap entry per busy lane; collectives are one entry for all members. Shared
// cores are a processor-sharing queue per node in virtual time (each running task of a node
// progresses at the same rate), so a change of load costs O(tasks running on the node).
#include "sim/engine.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "sim/explain.h"
#include "sim/tables.h"

namespace hocket::sim {
namespace {

using program::kNone;

/// Longest step that is simulated: 31 years. What is added to it, a task or two, fits into 64 bits.
constexpr int64_t kMaxStepNs = 1'000'000'000'000'000'000;

/// Completion of `task` on replayed rank `index` (for a collective: on its lowest member).
struct Event {
  int64_t ns;
  int32_t index;
  TaskId task;
  bool operator<(const Event& other) const {
    if (ns != other.ns) return ns < other.ns;
    return (uint64_t(uint32_t(index)) << 32 | uint32_t(task)) <
           (uint64_t(uint32_t(other.index)) << 32 | uint32_t(other.task));
  }
};

/// Four-ary min-heap: half the depth of a binary one, children in one cache line.
class EventHeap {
 public:
  bool empty() const { return events_.empty(); }
  const Event& top() const { return events_.front(); }
  void push(const Event& event) {
    events_.push_back(event);
    size_t hole = events_.size() - 1;
    while (hole > 0) {
      const size_t parent = (hole - 1) / 4;
      if (!(event < events_[parent])) break;
      events_[hole] = events_[parent];
      hole = parent;
    }
    events_[hole] = event;
  }
  void pop() {
    // The last event fills the hole at the top: it sinks below every child that comes before it.
    const Event event = events_.back();
    events_.pop_back();
    const size_t n = events_.size();
    if (n == 0) return;
    size_t hole = 0;
    while (true) {
      const size_t first = 4 * hole + 1;
      if (first >= n) break;
      size_t best = first;
      const size_t last = std::min(first + 4, n);
      for (size_t child = first + 1; child < last; ++child) {
        if (events_[child] < events_[best]) {
          best = child;
        }
      }
      if (!(events_[best] < event)) break;
      events_[hole] = events_[best];
      hole = best;
    }
    events_[hole] = event;
  }

 private:
  std::vector<Event> events_;
};

/// Accounts for where a rank's time goes, at every change of what it is doing.
struct Activity {
  int64_t since = 0;
  int32_t computing = 0, transferring = 0;
};

/// Processor sharing among the compute tasks of one node. `clock` is virtual: it advances by kScale
/// per nanosecond while there are cores for all, and by kScale x cores / demand otherwise. Rounding
/// costs at most 1 ns per change of load.
struct Node {
  static constexpr int64_t kScale = int64_t{1} << 16;
  struct Running {
    __int128 until;  ///< virtual
    int32_t index;
    TaskId task;
  };
  __int128 clock = 0;
  int64_t updated_ns = 0;
  std::vector<Running> running;

  static __int128 times(__int128 a, int64_t b) { return a * b; }

  void advance(int64_t now, int64_t cores, int64_t threads) {
    const int64_t demand = std::max<int64_t>(cores, threads * std::ssize(running));
    clock += times(now - updated_ns, kScale) * cores / demand;
    updated_ns = now;
  }
  /// The next to finish, ties by (rank, task); call after advance(now).
  Event next(int64_t cores, int64_t threads) const {
    const Running* best = nullptr;
    for (const Running& task : running) {
      if (!best || std::tie(task.until, task.index, task.task) <
                       std::tie(best->until, best->index, best->task)) {
        best = &task;
      }
    }
    const int64_t demand = std::max<int64_t>(cores, threads * std::ssize(running));
    const __int128 left = std::max<__int128>(0, best->until - clock);
    const __int128 rate = times(kScale, cores);
    const int64_t ns = static_cast<int64_t>((times(left, demand) + rate - 1) / rate);
    return {updated_ns + ns, best->index, best->task};
  }
};

template <bool kRecord, bool kShared>
class Engine {
 public:
  Engine(const Program& program, Durations& durations, const ReplayOptions& options)
      : durations_(durations), options_(options), t_(build_tables(program, durations, options)) {
    // All state is flat and indexed by (replayed rank, task of its class): `base[i]` is where rank
    // i begins. `waits_` starts as the class's counts and is counted down; receives have a slot
    // each; channels have a counter per meeting. Nothing is allocated after this.
    const size_t n = t_.num_ranks();
    out_.ranks = t_.ranks;
    out_.stands = t_.stands;
    out_.one_per_class = t_.one_per_class;
    out_.time.resize(n);
    activity_.resize(n);
    slot_base_.resize(n);
    int64_t tasks = 0;
    int64_t slots = 0;
    for (size_t i = 0; i < n; ++i) {
      const ClassTable& c = table(static_cast<int32_t>(i));
      out_.base.push_back(tasks);
      slot_base_[i] = slots;
      tasks += std::ssize(c.tasks);
      slots += c.num_recvs;
    }
    out_.num_tasks = tasks;
    waits_.resize(tasks);
    for (size_t i = 0; i < n; ++i) {
      const ClassTable& c = table(static_cast<int32_t>(i));
      std::copy(c.waits.begin(), c.waits.end(), waits_.begin() + out_.base[i]);
    }
    arrived_.assign(t_.channel_states, 0);
    last_arriver_.assign(kRecord ? t_.channel_states : 0, kNone);
    slots_.resize(slots);
    if (kRecord) {
      out_.start_ns.assign(tasks, -1);
      out_.transfer_ns.assign(tasks, -1);
      out_.end_of_ns.assign(tasks, -1);
      cause_.assign(tasks, {});
    }
    if (kShared) {
      nodes_.resize(t_.ranks.back() / std::max(1, options.devices_per_node) + 1);
    }
  }

  Replay run() {
    // What waits for nothing starts at 0; from then on the end of one task starts the next. When no
    // event is left, all tasks have ended, or those that have not wait for each other.
    const int32_t num_ranks = static_cast<int32_t>(t_.num_ranks());
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const ClassTable& tasks = table(rank);
      for (size_t task = 0; task < tasks.tasks.size(); ++task) {
        if (tasks.waits[task] == 0) {
          start(rank, task, 0, {});
        }
      }
    }
    while (true) {
      int32_t node = kNone;
      Event event;
      if (!take(&event, &node)) break;
      now_ = event.ns;
      if (now_ > kMaxStepNs) {
        fail("simulate",
             "the step would take more than {} days; try other constants in the cluster "
             "file or profile",
             kMaxStepNs / (86400 * int64_t{1'000'000'000}));
      }
      complete_event(event, node);
    }
    for (size_t i = 0; i < activity_.size(); ++i) {
      touch(static_cast<int32_t>(i), now_);
    }
    out_.end_ns = now_;
    if (done_ != out_.num_tasks) {
      throw_deadlock(t_, out_.base, waits_, arrived_, ended());
    }
    if (kRecord) {
      out_.path = critical_path(t_, out_, cause_, last_arriver_);
    }
    return std::move(out_);
  }

 private:
  struct Slot {            // one receive
    int64_t sent_ns = -1;  ///< the transfer began
    bool posted = false, arrived = false, done = false;
  };

  const ClassTable& table(int32_t index) const { return t_.of(index); }

  void touch(int32_t index, int64_t now) {
    Activity& activity = activity_[index];
    const int64_t passed = now - activity.since;
    activity.since = now;
    RankTime& time = out_.time[index];
    if (activity.computing > 0) {
      time.compute_ns += passed;
    } else if (activity.transferring > 0) {
      time.exposed_ns += passed;
    } else {
      time.idle_ns += passed;
    }
  }

  static bool is_compute(uint8_t lane) {
    return lane == static_cast<uint8_t>(program::Lane::compute) ||
           lane == static_cast<uint8_t>(program::Lane::host);
  }

  void begin(int32_t index, TaskId task, uint8_t lane, bool transfer) {
    touch(index, now_);
    Activity& activity = activity_[index];
    (transfer || !is_compute(lane) ? activity.transferring : activity.computing) += 1;
    out_.time[index].busy_ns[lane] -= now_;
    if (kRecord) {
      out_.transfer_ns[out_.base[index] + task] = now_;
    }
  }

  void finish(int32_t index, uint8_t lane, bool transfer) {
    touch(index, now_);
    Activity& activity = activity_[index];
    (transfer || !is_compute(lane) ? activity.transferring : activity.computing) -= 1;
    out_.time[index].busy_ns[lane] += now_;
  }

  int64_t transfer_ns(int32_t index, TaskId task, size_t row, int32_t shape) {
    const ClassId cls = t_.cls[index];
    int64_t& ns = t_.classes[cls].transfer_ns[row * t_.num_shapes + shape];
    if (ns < 0) {
      ns = durations_.transfer_ns(cls, task, shape);
      HOCKET_CHECK(ns >= 0, "transfer of task {} takes {} ns", task, ns);
    }
    return ns;
  }

  void start(int32_t i, TaskId task, int64_t now, TaskAt cause) {
    // A task starts when its last dependency and its lane's previous task have ended (`cause`: the
    // one that was last). Work occupies its lane and ends after its duration; shared work joins its
    // node's queue instead. A send occupies its lane for the transfer and tells the receiver's slot
    // that the transfer has begun. A receive ends when its message has arrived, maybe at once. The
    // last member to arrive at a collective begins the transfer for all of them; the one event that
    // ends it belongs to the lowest member.
    const ClassTable& c = table(i);
    const TaskRecord& record = c.tasks[task];
    if (kRecord) {
      const size_t k = out_.base[i] + task;
      out_.start_ns[k] = now;
      cause_[k] = cause;
    }
    switch (record.type) {
      case TaskType::work:
        begin(i, task, record.lane, false);
        heap_.push({now + record.ns, i, task});
        break;
      case TaskType::shared_work:
        begin(i, task, record.lane, false);
        if (kShared) {
          Node& node = nodes_[node_of(i)];
          node.advance(now, options_.cores_per_node, options_.threads_per_rank);
          node.running.push_back({node.clock + Node::times(record.ns, Node::kScale), i, task});
        }
        break;
      case TaskType::send: {
        begin(i, task, record.lane, true);
        const P2pRecord& p2p = c.p2p[record.aux];
        const size_t k = p2p.link * t_.num_ranks() + i;
        const size_t row = c.collectives.size() + record.aux;
        heap_.push({now + transfer_ns(i, task, row, t_.link_shape[k]), i, task});
        const int32_t peer = t_.link_peer[k];
        const MessageEnd end = t_.other_end(p2p, peer);
        if (end.task == kNone) break;
        Slot& slot = slots_[slot_base_[peer] + end.slot];
        slot.sent_ns = now;
        if (slot.posted) {
          begin(peer, end.task, table(peer).tasks[end.task].lane, true);
        }
        break;
      }
      case TaskType::recv: {
        const P2pRecord& p2p = c.p2p[record.aux];
        Slot& slot = slots_[slot_base_[i] + p2p.slot];
        slot.posted = true;
        if (slot.sent_ns >= 0) {
          begin(i, task, record.lane, true);
        }
        if (slot.arrived) {
          heap_.push({now, i, task});
        }
        break;
      }
      case TaskType::collective: {
        const CollectiveRecord& collective = c.collectives[record.aux];
        const Instance& instance = instance_at(collective, i);
        const size_t state = state_at(collective, i);
        if (++arrived_[state] < std::ssize(instance.members)) break;
        if (kRecord) {
          last_arriver_[state] = i;
        }
        const int32_t first = instance.members[0];
        for (int32_t member : instance.members) {
          begin(member, task_at(collective, member), lane_of(collective, member), true);
        }
        const TaskId first_task = task_at(collective, first);
        const size_t row = table(first).tasks[first_task].aux;
        heap_.push({now + transfer_ns(first, first_task, row, instance.shape), first, first_task});
        break;
      }
    }
  }

  const Instance& instance_at(const CollectiveRecord& record, int32_t i) const {
    const GroupId group = t_.channel_group[record.channel];
    return t_.instances[group][t_.instance(group, i)];
  }
  size_t state_at(const CollectiveRecord& record, int32_t i) const {
    const GroupId group = t_.channel_group[record.channel];
    return t_.channel_base[record.channel] +
           int64_t{t_.instance(group, i)} * t_.channel_length[record.channel] + record.ordinal;
  }
  TaskId task_at(const CollectiveRecord& record, int32_t member) const {
    return t_.channel_tasks[record.channel][t_.cls[member]][record.ordinal];
  }
  uint8_t lane_of(const CollectiveRecord& record, int32_t member) const {
    return table(member).tasks[task_at(record, member)].lane;
  }
  int32_t node_of(int32_t i) const { return t_.ranks[i] / std::max(1, options_.devices_per_node); }

  /// Earliest event of the heap and of the shared nodes, ties by (rank, task).
  bool take(Event* event, int32_t* node) {
    bool any = false;
    if (!heap_.empty()) {
      *event = heap_.top();
      any = true;
    }
    if (kShared) {
      for (size_t k = 0; k < nodes_.size(); ++k) {
        if (nodes_[k].running.empty()) continue;
        const Event next = nodes_[k].next(options_.cores_per_node, options_.threads_per_rank);
        if (any && !(next < *event)) continue;
        *event = next;
        *node = static_cast<int32_t>(k);
        any = true;
      }
    }
    if (any && *node == kNone) {
      heap_.pop();
    }
    return any;
  }

  void complete_event(const Event& event, int32_t node) {
    // What start() began ends here: the lane's account is closed, and tasks that waited may start
    // (complete). A send also delivers: the receiver's slot has its message, and a receive that was
    // posted already ends now. A collective ends for all members at once.
    const ClassTable& c = table(event.index);
    const TaskRecord& record = c.tasks[event.task];
    switch (record.type) {
      case TaskType::shared_work: {
        Node& sharing = nodes_[node];
        sharing.advance(now_, options_.cores_per_node, options_.threads_per_rank);
        std::erase_if(sharing.running, [&](const Node::Running& running) {
          return running.index == event.index && running.task == event.task;
        });
        [[fallthrough]];
      }
      case TaskType::work:
        finish(event.index, record.lane, false);
        complete(event.index, event.task);
        break;
      case TaskType::send: {
        finish(event.index, record.lane, true);
        const P2pRecord& p2p = c.p2p[record.aux];
        const int32_t peer = t_.peer(p2p.link, event.index);
        if (const MessageEnd end = t_.other_end(p2p, peer); end.task != kNone) {
          Slot& slot = slots_[slot_base_[peer] + end.slot];
          slot.arrived = true;
          if (slot.posted) {
            heap_.push({now_, peer, end.task});
          }
        }
        complete(event.index, event.task);
        break;
      }
      case TaskType::recv:
        finish(event.index, record.lane, true);
        complete(event.index, event.task);
        break;
      case TaskType::collective: {
        const CollectiveRecord& collective = c.collectives[record.aux];
        for (int32_t member : instance_at(collective, event.index).members) {
          const TaskId task = task_at(collective, member);
          finish(member, table(member).tasks[task].lane, true);
          complete(member, task);
        }
        break;
      }
    }
  }

  void complete(int32_t i, TaskId task) {
    ++done_;
    const ClassTable& c = table(i);
    const TaskRecord& record = c.tasks[task];
    const int64_t base = out_.base[i];
    if (kRecord) {
      out_.end_of_ns[base + task] = now_;
    } else {
      waits_[base + task] = -1;  // the mark of what has ended, see ended()
    }
    for (int32_t k = record.succ_begin; k < record.succ_end; ++k) {
      const TaskId next = c.succ[k];
      if (--waits_[base + next] == 0) {
        start(i, next, now_, {i, task});
      }
    }
  }

  /// Which tasks have ended, for the deadlock report.
  std::vector<bool> ended() const {
    std::vector<bool> list(waits_.size());
    for (size_t k = 0; k < list.size(); ++k) {
      list[k] = kRecord ? out_.end_of_ns[k] >= 0 : waits_[k] < 0;
    }
    return list;
  }

  Durations& durations_;
  const ReplayOptions& options_;
  Tables t_;
  Replay out_;
  EventHeap heap_;
  int64_t now_ = 0, done_ = 0;
  std::vector<int32_t> waits_;
  std::vector<TaskAt> cause_;     ///< whose end let a task start
  std::vector<int32_t> arrived_;  ///< per (channel, instance, ordinal)
  std::vector<int32_t> last_arriver_;
  std::vector<int64_t> slot_base_;
  std::vector<Slot> slots_;
  std::vector<Activity> activity_;
  std::vector<Node> nodes_;
};

}  // namespace

Replay replay(const Program& program, Durations& durations, const ReplayOptions& options) {
  // Sharing is decided by the tables; the two flavours differ only when cores are scarce.
  if (options.cores_per_node > 0) {
    return options.record ? Engine<true, true>(program, durations, options).run()
                          : Engine<false, true>(program, durations, options).run();
  }
  return options.record ? Engine<true, false>(program, durations, options).run()
                        : Engine<false, false>(program, durations, options).run();
}

}  // namespace hocket::sim

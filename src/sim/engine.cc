// SPDX-License-Identifier: Apache-2.0
// Event loop of the replay. Every busy lane has one event; a collective has one for all its
// members. Activities at a speed that depends on others have a second queue (sharing.h). It stays
// empty, and costs nothing, in programs without them.
#include "sim/engine.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/error.h"
#include "base/stop.h"
#include "sim/bubble.h"
#include "sim/event_queue.h"
#include "sim/explain.h"
#include "sim/sharing.h"
#include "sim/tables.h"

namespace hocket::sim {
namespace {

using program::kNone;

/// Upper bound on the simulated step: 31 years. A task or two added to it still fits into 64 bits.
constexpr int64_t kMaxStepNs = 1'000'000'000'000'000'000;

/// Account of a rank's time, updated whenever its activity changes. Aligned to cache lines, since
/// every event touches the account of another rank.
struct alignas(64) Account {
  int64_t since = 0;
  int32_t computing = 0, transferring = 0;
  RankTime time;
};

/// `kVaries`: see Tables::has_variable_rates. The cost of variable speeds is paid only if it is
/// set.
template <bool kRecord, bool kVaries>
class Engine {
 public:
  Engine(Tables& tables, Durations& durations, const ReplayOptions& options)
      : durations_(durations),
        options_(options),
        t_(tables),
        bubbles_(tables),
        sharing_(t_.ranks, t_.num_shared_links,
                 {.devices_per_node = options.devices_per_node,
                  .cores_per_node = t_.shared_cores ? options.cores_per_node : 0,
                  .threads_per_rank = options.threads_per_rank,
                  .compute_beside_transfer = options.compute_beside_transfer,
                  .transfer_beside_compute = options.transfer_beside_compute}) {
    // All state is flat and indexed by (replayed rank, task of its class); `base[i]` is the offset
    // of rank i. `waits_` starts as the class's counts and is counted down. Every receive has a
    // slot, every channel a counter per meeting. Nothing is allocated after this.
    const size_t n = t_.num_ranks();
    out_.ranks = t_.ranks;
    out_.multiplicity = t_.multiplicity;
    out_.deduplicated = t_.deduplicated;
    out_.shares_links = t_.num_shared_links > 0;
    out_.links_prevent_dedup = t_.links_prevent_dedup;
    accounts_.resize(n);
    slot_base_.resize(n);
    int64_t tasks = 0;
    int64_t slots = 0;
    for (RankIndex i = 0; i < n; ++i) {
      const ClassTable& c = table(i);
      out_.base.push_back(tasks);
      slot_base_[i] = slots;
      tasks += std::ssize(c.tasks);
      slots += c.num_recvs;
    }
    out_.num_tasks = tasks;
    lay_out_waits(tasks);
    arrived_.assign(t_.channel_states, 0);
    last_arriver_.assign(kRecord ? t_.channel_states : 0, kNone);
    slots_.resize(slots);
    if (kRecord) {
      out_.start_ns.assign(tasks, -1);
      out_.transfer_ns.assign(tasks, -1);
      out_.end_of_ns.assign(tasks, -1);
      cause_.assign(tasks, {});
      if (options.keep_order) {
        HOCKET_CHECK(tasks <= INT32_MAX, "{} tasks to be kept in order", tasks);
        out_.order.assign(tasks, 0);
      }
    }
    if (kVaries) {
      awaits_launch_.assign(options.launch_ns > 0 ? tasks : 0, false);
      host_ended_.assign(n, 0);
      host_last_.assign(n, kNone);
      for (RankIndex i = 0; i < n; ++i) {
        self_.push_back(i);
      }
    }
  }

  Replay run() {
    // Tasks without dependencies start at 0; from then on the end of one task starts the next. When
    // no event is left, either all tasks have ended or the remaining ones wait for each other.
    for (RankIndex rank = 0; rank < t_.num_ranks(); ++rank) {
      const ClassTable& tasks = table(rank);
      for (size_t task = 0; task < tasks.tasks.size(); ++task) {
        if (tasks.waits[task] == 0) {
          launch(rank, task, {});
        }
      }
    }
    Event event;
    while (next(&event)) {
      stop_if_asked();
      now_ = event.ns;
      if (now_ > kMaxStepNs) {
        fail("simulate",
             "the step would take more than {} days; try other constants in the cluster "
             "file or profile",
             kMaxStepNs / (86400 * int64_t{1'000'000'000}));
      }
      process(event);
    }
    for (RankIndex i = 0; i < accounts_.size(); ++i) {
      charge(i, now_);
    }
    out_.end_ns = now_;
    if (done_ != out_.num_tasks) {
      throw_deadlock(t_, out_.base, waits_by_rank(), arrived_, ended());
    }
    const std::vector<int64_t> last_bubbles = bubbles_.after_all(now_);
    for (size_t i = 0; i < accounts_.size(); ++i) {
      RankTime& time = out_.time.emplace_back(accounts_[i].time);
      time.bubble_ns += last_bubbles[i];
      time.idle_ns -= time.bubble_ns;
    }
    if (kRecord) {
      out_.path = critical_path(t_, out_, cause_, last_arriver_);
    }
    return std::move(out_);
  }

 private:
  struct Slot {            // state of one receive
    int64_t sent_ns = -1;  ///< time when the transfer began
    bool posted = false, arrived = false, done = false;
  };

  struct WaitAt {  // position of a rank's counts in `waits_`, and the distance between them
    int64_t begin = 0, stride = 0;
  };

  const ClassTable& table(RankIndex index) const { return t_.of(index); }

  /// Lays out `waits_` by class, then task, then rank. Ranks of a class progress at about the same
  /// pace, so the counters in use lie close together for any number of ranks.
  void lay_out_waits(int64_t tasks) {
    std::vector<int64_t> ranks_of(t_.classes.size(), 0);
    for (const TableId table : t_.table) {
      wait_at_.push_back({.begin = ranks_of[table]++});
    }
    std::vector<int64_t> base(t_.classes.size(), 0);
    waits_.reserve(tasks);
    for (size_t k = 0; k < t_.classes.size(); ++k) {
      base[k] = std::ssize(waits_);
      for (const int32_t waits : t_.classes[k].waits) {
        waits_.insert(waits_.end(), ranks_of[k], waits);
      }
    }
    for (size_t i = 0; i < wait_at_.size(); ++i) {
      wait_at_[i].begin += base[t_.table[i]];
      wait_at_[i].stride = ranks_of[t_.table[i]];
    }
  }
  int32_t& waits(RankIndex index, TaskId task) {
    return waits_[wait_at_[index].begin + wait_at_[index].stride * int64_t{task}];
  }

  /// Adds the time since the last change to the rank's account. Idle time includes bubbles until
  /// the end of the step.
  void charge(RankIndex index, int64_t now) {
    Account& account = accounts_[index];
    const int64_t passed = now - account.since;
    account.since = now;
    RankTime& time = account.time;
    if (account.computing > 0) {
      time.compute_ns += passed;
    } else if (account.transferring > 0) {
      time.exposed_ns += passed;
    } else {
      time.idle_ns += passed;
    }
  }

  static bool is_compute(program::Lane lane) {
    return lane == program::Lane::compute || lane == program::Lane::host;
  }

  static bool computes(const TaskRecord& record) {
    return (record.type == TaskType::work || record.type == TaskType::shared_work) &&
           is_compute(record.lane);
  }

  void begin(RankIndex index, TaskId task, program::Lane lane, bool transfer) {
    charge(index, now_);
    Account& account = accounts_[index];
    RankTime& time = account.time;
    if (transfer || !is_compute(lane)) {
      ++account.transferring;
    } else {
      ++account.computing;
      time.bubble_ns += bubbles_.before_compute(index, task, now_, time.idle_ns);
    }
    time.busy_ns[place_of(lane)] -= now_;
    if (kVaries && transfer) {
      sharing_.change_transfers(index, +1, now_);
    }
    if (kRecord) {
      out_.transfer_ns[out_.base[index] + task] = now_;
    }
  }

  void finish(RankIndex index, program::Lane lane, bool transfer) {
    charge(index, now_);
    Account& account = accounts_[index];
    (transfer || !is_compute(lane) ? account.transferring : account.computing) -= 1;
    account.time.busy_ns[place_of(lane)] += now_;
    if (kVaries && transfer) {
      sharing_.change_transfers(index, -1, now_);
    }
  }

  int64_t transfer_ns(RankIndex index, TaskId task, size_t row, ShapeId shape) {
    const ClassId cls = t_.cls[index];
    int64_t& ns = t_.classes[t_.table[index]].transfer_ns[row * t_.num_shapes + shape];
    if (ns < 0) {
      ns = durations_.transfer_ns(cls, task, shape);
      HOCKET_CHECK(ns >= 0, "transfer of task {} takes {} ns", task, ns);
    }
    return ns;
  }

  /// Returns the demand of a transfer. Without a network the whole duration counts as data at full
  /// speed.
  const Demand& demand(RankIndex index, TaskId task, size_t row, ShapeId shape) {
    const int64_t ns = transfer_ns(index, task, row, shape);
    if (!durations_.network())
      return fixed_demands_.try_emplace(ns, Demand{0, ns, 0, {}}).first->second;
    const ClassId cls = t_.cls[index];
    const Demand*& known = t_.classes[t_.table[index]].demand[row * t_.num_shapes + shape];
    if (!known) {
      known = &durations_.demand(cls, task, shape);
      HOCKET_CHECK(known->latency_ns + known->data_ns == ns, "transfer of task {} takes {} or {}",
                   task, ns, known->latency_ns + known->data_ns);
    }
    return *known;
  }

  /// Begins a transfer, which ends with an event of this task. `ranks`: those with computation that
  /// slows it down.
  void transfer(RankIndex i, TaskId task, size_t row, ShapeId shape, std::span<const LinkUse> uses,
                std::span<const RankIndex> ranks) {
    if (kVaries && (!uses.empty() || options_.transfer_beside_compute != 1)) {
      sharing_.begin_transfer(i, task, demand(i, task, row, shape), uses, ranks, now_);
    } else {
      queue_.push({now_ + transfer_ns(i, task, row, shape), i, task});
    }
  }

  /// Starts a task after its dependencies, or schedules its start for when the host launches
  /// it.
  void launch(RankIndex i, TaskId task, TaskAt cause) {
    if (kVaries && options_.launch_ns > 0) {
      const ClassTable& c = table(i);
      const TaskId host = c.host_before[task];
      // If the host has run or awaited another task since, it has already launched this one.
      if (host_last_[i] == host) {
        const int64_t ns = host_ended_[i] + c.launched_ns[task];
        if (ns > now_) {
          awaits_launch_[out_.base[i] + task] = true;
          queue_.push({ns, i, task});
          return;
        }
      }
    }
    start(i, task, now_, cause);
  }

  void start(RankIndex i, TaskId task, int64_t now, TaskAt cause) {
    // A task starts when its last dependency and its lane's previous task have ended; `cause` is
    // the later one. Work occupies its lane for its duration; shared work joins its node's queue
    // instead. A send occupies its lane for the transfer and marks the receiver's slot as begun. A
    // receive ends when its message has arrived, possibly at once. The last member to arrive at a
    // collective begins the transfer for all of them; one event ends it, that of the lowest
    // member.
    const ClassTable& c = table(i);
    const TaskRecord& record = c.tasks[task];
    if (kRecord) {
      const size_t k = out_.base[i] + task;
      out_.start_ns[k] = now;
      cause_[k] = cause;
    }
    if (!computes(record)) {
      charge(i, now);
      bubbles_.start(i, task, now, accounts_[i].time.idle_ns);
    }
    switch (record.type) {
      case TaskType::work:
        begin(i, task, record.lane, false);
        queue_.push({now + record.ns, i, task});
        break;
      case TaskType::shared_work:
        begin(i, task, record.lane, false);
        sharing_.begin_work(i, task, record.ns, program::is_of_host(record.lane), now);
        break;
      case TaskType::send: {
        begin(i, task, record.lane, true);
        const P2pRecord& p2p = c.p2p[record.p2p()];
        const size_t k = t_.entry(p2p.link, i);
        const size_t row = c.transfer_row(record);
        transfer(i, task, row, t_.link_shape[k],
                 t_.link_uses.empty() ? std::span<const LinkUse>() : t_.link_uses[k],
                 std::span<const RankIndex>(self_).subspan(kVaries ? i : 0, kVaries ? 1 : 0));
        const RankIndex peer = t_.link_peer[k];
        const MessageEnd end = t_.other_end(p2p, peer);
        if (end.task == kNone) break;
        Slot& slot = slots_[slot_base_[peer] + end.slot];
        slot.sent_ns = now;
        if (slot.posted) {
          begin(peer, end.task, table(peer).tasks[end.task].lane, true);
          bubbles_.message_begins(peer, end.task, i, task, accounts_[peer].time.idle_ns);
        }
        break;
      }
      case TaskType::recv: {
        const P2pRecord& p2p = c.p2p[record.p2p()];
        Slot& slot = slots_[slot_base_[i] + p2p.slot];
        slot.posted = true;
        if (slot.sent_ns >= 0) {
          begin(i, task, record.lane, true);
        }
        if (slot.arrived) {
          queue_.push({now, i, task});
        }
        break;
      }
      case TaskType::collective: {
        const CollectiveRecord& collective = c.collectives[record.collective()];
        const Instance& instance = instance_at(collective, i);
        const size_t state = state_at(collective, i);
        if (++arrived_[state] < std::ssize(instance.members)) break;
        if (kRecord) {
          last_arriver_[state] = i;
        }
        const RankIndex first = instance.members[0];
        const Bubbles::Late late = bubbles_.late(instance.members, record.lane, now);
        for (RankIndex member : instance.members) {
          begin(member, task_at(collective, member), record.lane, true);
          bubbles_.collective_begins(member, record.lane, late, accounts_[member].time.idle_ns);
        }
        const TaskId first_task = task_at(collective, first);
        const size_t row = table(first).transfer_row(table(first).tasks[first_task]);
        transfer(first, first_task, row, instance.shape, instance.uses, instance.members);
        break;
      }
    }
  }

  const Instance& instance_at(const CollectiveRecord& record, RankIndex i) const {
    const GroupId group = t_.channel_group[record.channel];
    return t_.instances[group][t_.instance(group, i)];
  }
  size_t state_at(const CollectiveRecord& record, RankIndex i) const {
    const GroupId group = t_.channel_group[record.channel];
    return t_.channel_base[record.channel] +
           int64_t{t_.instance(group, i)} * t_.channel_length[record.channel] + record.ordinal;
  }
  TaskId task_at(const CollectiveRecord& record, RankIndex member) const {
    return t_.channel_tasks[record.channel][t_.cls[member]][record.ordinal];
  }

  /// Takes the earliest event; ties are broken by (rank, task). Returns false if none is left.
  bool next(Event* event) {
    while (kVaries && !sharing_.empty() && (queue_.empty() || sharing_.next() < queue_.top())) {
      *event = sharing_.next();
      if (sharing_.pop()) return true;
    }
    if (queue_.empty()) return false;
    *event = queue_.top();
    queue_.pop();
    return true;
  }

  void process(const Event& event) {
    if (kVaries && !awaits_launch_.empty() && awaits_launch_[out_.base[event.index] + event.task]) {
      awaits_launch_[out_.base[event.index] + event.task] = false;
      start(event.index, event.task, now_,
            {event.index, table(event.index).host_before[event.task]});
    } else {
      complete_event(event);
    }
  }

  void complete_event(const Event& event) {
    // The activity that start() began ends here: the lane's account is closed, and waiting tasks
    // may start (complete). A send also delivers: the receiver's slot has its message, and a
    // receive that is already posted ends now. A collective ends for all members at once.
    const ClassTable& c = table(event.index);
    const TaskRecord& record = c.tasks[event.task];
    switch (record.type) {
      case TaskType::shared_work:
      case TaskType::work:
        finish(event.index, record.lane, false);
        complete(event.index, event.task);
        break;
      case TaskType::send: {
        finish(event.index, record.lane, true);
        const P2pRecord& p2p = c.p2p[record.p2p()];
        const RankIndex peer = t_.peer(p2p.link, event.index);
        if (const MessageEnd end = t_.other_end(p2p, peer); end.task != kNone) {
          Slot& slot = slots_[slot_base_[peer] + end.slot];
          slot.arrived = true;
          if (slot.posted) {
            queue_.push({now_, peer, end.task});
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
        const CollectiveRecord& collective = c.collectives[record.collective()];
        for (RankIndex member : instance_at(collective, event.index).members) {
          const TaskId task = task_at(collective, member);
          finish(member, table(member).tasks[task].lane, true);
          complete(member, task);
        }
        break;
      }
    }
  }

  void complete(RankIndex i, TaskId task) {
    ++done_;
    const ClassTable& c = table(i);
    const TaskRecord& record = c.tasks[task];
    const int64_t base = out_.base[i];
    if (kRecord) {
      out_.end_of_ns[base + task] = now_;
      if (!out_.order.empty()) {
        out_.order[base + task] = done_ - 1;
      }
    } else {
      waits(i, task) = -1;  // marks the task as ended, see ended()
    }
    bubbles_.end(i, task, computes(record), now_);
    if (kVaries && record.host_waits) {
      host_ended_[i] = now_;
      host_last_[i] = task;
    }
    for (int32_t k = record.succ_begin; k < record.succ_end; ++k) {
      const TaskId next = c.succ[k];
      if (--waits(i, next) == 0) {
        launch(i, next, {i, task});
      }
    }
  }

  // Waiting counts and ended tasks in rank order, for the deadlock report.
  std::vector<int32_t> waits_by_rank() {
    std::vector<int32_t> list;
    list.reserve(waits_.size());
    for (RankIndex i = 0; i < wait_at_.size(); ++i) {
      for (size_t task = 0; task < table(i).tasks.size(); ++task) {
        list.push_back(waits(i, task));
      }
    }
    return list;
  }
  std::vector<bool> ended() {
    const std::vector<int32_t> waits = waits_by_rank();
    std::vector<bool> list(waits.size());
    for (size_t k = 0; k < list.size(); ++k) {
      list[k] = kRecord ? out_.end_of_ns[k] >= 0 : waits[k] < 0;
    }
    return list;
  }

  Durations& durations_;
  const ReplayOptions& options_;
  Tables& t_;
  Replay out_;
  EventQueue queue_;
  int64_t now_ = 0, done_ = 0;
  std::vector<int32_t> waits_;    ///< see lay_out_waits
  std::vector<WaitAt> wait_at_;   ///< per rank
  std::vector<TaskAt> cause_;     ///< event that let a task start
  std::vector<int32_t> arrived_;  ///< per (channel, instance, ordinal)
  std::vector<RankIndex> last_arriver_;
  std::vector<int64_t> slot_base_;
  std::vector<Slot> slots_;
  std::vector<Account> accounts_;
  Bubbles bubbles_;
  // Used only if kVaries.
  Sharing sharing_;
  std::vector<bool> awaits_launch_;  ///< tasks that wait for their launch
  std::vector<int64_t> host_ended_;  ///< per rank, when the host last ended or awaited a task
  std::vector<TaskId> host_last_;    ///< per rank, that task
  std::vector<RankIndex> self_;      ///< 0, 1, ...: every rank as a list of one
  std::map<int64_t, Demand>
      fixed_demands_;  ///< demands of transfers without a network, by duration
};

}  // namespace

Replay replay(const Program& program, Durations& durations, const ReplayOptions& options) {
  Tables tables = build_tables(program, durations, options);
  return replay(tables, durations, options);
}

Replay replay(Tables& tables, Durations& durations, const ReplayOptions& options) {
  const auto run = [&]<bool kRecord, bool kVaries>() {
    return Engine<kRecord, kVaries>(tables, durations, options).run();
  };
  if (tables.has_variable_rates) {
    return options.record ? run.template operator()<true, true>()
                          : run.template operator()<false, true>();
  }
  return options.record ? run.template operator()<true, false>()
                        : run.template operator()<false, false>();
}

}  // namespace hocket::sim

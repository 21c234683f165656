// SPDX-License-Identifier: Apache-2.0
// The durations of work and transfers are fixed here, so ends are longest paths. The order of ends
// of the full replay is a topological order of the tasks for any durations.
#include "sim/partial.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace hocket::sim {

using program::kNone;

int64_t ScaledDurations::scaled(int64_t ns, double times) {
  return times == 1 ? ns : std::llround(static_cast<double>(ns) / times);
}

double ScaledDurations::times(ClassId cls, TaskId task) const {
  return by_kind_[p_.classes[cls].tasks[task].kind];
}

int64_t ScaledDurations::work_ns(ClassId cls, TaskId task) {
  return scaled(durations_.work_ns(cls, task), times(cls, task));
}

int64_t ScaledDurations::work_ns_on(size_t device, ClassId cls, TaskId task) {
  return scaled(durations_.work_ns_on(device, cls, task), times(cls, task));
}

int64_t ScaledDurations::transfer_ns(ClassId cls, TaskId task, ShapeId shape) {
  return scaled(durations_.transfer_ns(cls, task, shape), times(cls, task));
}

const Demand& ScaledDurations::demand(ClassId cls, TaskId task, ShapeId shape) {
  const Demand& whole = durations_.demand(cls, task, shape);
  const double by = times(cls, task);
  const auto [it, fresh] = demands_[&whole].try_emplace(by, whole);
  if (fresh) {
    it->second.data_ns = scaled(whole.data_ns, by);
    it->second.latency_ns = scaled(whole.latency_ns + whole.data_ns, by) - it->second.data_ns;
  }
  return it->second;
}

PartialReplay::PartialReplay(const Program& program, Durations& durations,
                             const ReplayOptions& options)
    : p_(program),
      durations_(durations),
      options_(options),
      tables_(build_tables(program, durations, options)) {
  // Runs and keeps a full replay: the end of every task and the order of ends. A change propagates
  // in that order from the tasks that it marks. The last tasks of a class give the end of a rank.
  options_.record = true;
  options_.keep_order = true;
  full_ = replay(tables_, durations, options_);
  ends_ = full_.end_of_ns;
  order_of_.resize(ends_.size());
  task_at_.resize(ends_.size());
  for (RankIndex i = 0; i < tables_.num_ranks(); ++i) {
    for (size_t task = 0; task < tables_.of(i).tasks.size(); ++task) {
      const int32_t place = full_.order[full_.base[i] + task];
      order_of_[full_.base[i] + task] = place;
      task_at_[place] = {i, task};
    }
  }
  marked_.assign(ends_.size() / 64 + 1, 0);
  for (const ClassTable& table : tables_.classes) {
    std::vector<bool> last(table.tasks.size(), true);
    for (const TaskId before : table.before) {
      if (before != kNone) {
        last[before] = false;
      }
    }
    std::vector<TaskId>& ends = last_.emplace_back();
    for (size_t task = 0; task < last.size(); ++task) {
      if (last[task]) {
        ends.push_back(task);
      }
    }
  }
}

PartialReplay::Result PartialReplay::faster(std::span<const double> by_kind) {
  return faster(by_kind, nullptr);
}

PartialReplay::Result PartialReplay::faster(std::span<const double> by_kind,
                                            std::vector<int64_t>* ends) {
  HOCKET_CHECK(by_kind.size() == p_.kinds.size(), "{} factors for {} kinds", by_kind.size(),
               p_.kinds.size());
  if (tables_.has_variable_rates) {
    ScaledDurations durations(p_, durations_, by_kind);
    ReplayOptions options = options_;
    options.record = ends != nullptr;
    options.keep_order = false;
    Replay whole = replay(p_, durations, options);
    if (ends) {
      *ends = std::move(whole.end_of_ns);
    }
    return {whole.end_ns, whole.num_tasks};
  }
  // Tasks with changed durations are marked. A task that ends at another time marks its successors,
  // which come later in the order.
  Result answer;
  first_marked_ = marked_.size();
  mark_changed(by_kind);
  for (size_t word = first_marked_; word < marked_.size(); ++word) {
    while (marked_[word] != 0) {
      const unsigned bit = std::countr_zero(marked_[word]);
      marked_[word] &= marked_[word] - 1;
      const auto [index, task] = task_at_[word * 64 + bit];
      evaluate(index, task, by_kind);
      ++answer.tasks;
    }
  }
  answer.end_ns = last_end();
  if (ends) {
    *ends = ends_;
  }
  for (const Change& change : changes_) {
    ends_[change.at] = change.before;
  }
  changes_.clear();
  return answer;
}

void PartialReplay::mark_changed(std::span<const double> by_kind) {
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    std::vector<TaskId> changed;
    for (size_t task = 0; task < p_.classes[cls].tasks.size(); ++task) {
      if (by_kind[p_.classes[cls].tasks[task].kind] != 1) {
        changed.push_back(task);
      }
    }
    for (RankIndex i = 0; i < tables_.num_ranks(); ++i) {
      if (tables_.cls[i] != ClassId(cls)) continue;
      for (const TaskId task : changed) {
        mark(i, task);
      }
    }
  }
}

void PartialReplay::mark(RankIndex index, TaskId task) {
  // A collective is evaluated once for all its members, at the position of the first of them.
  const TaskRecord& record = tables_.of(index).tasks[task];
  if (record.type == TaskType::collective) {
    const CollectiveRecord& collective = tables_.of(index).collectives[record.collective()];
    index = instance_of(collective, index).members[0];
    task = tables_.channel_tasks[collective.channel][tables_.cls[index]][collective.ordinal];
  }
  const size_t place = order_of_[full_.base[index] + task];
  marked_[place / 64] |= uint64_t{1} << (place % 64);
  first_marked_ = std::min(first_marked_, place / 64);
}

const Instance& PartialReplay::instance_of(const CollectiveRecord& record, RankIndex index) const {
  const GroupId group = tables_.channel_group[record.channel];
  return tables_.instances[group][tables_.instance(group, index)];
}

int64_t PartialReplay::ready(RankIndex index, TaskId task) const {
  const ClassId cls = tables_.cls[index];
  const int64_t* ends = ends_.data() + full_.base[index];
  int64_t ns = 0;
  for (const TaskId dep : p_.classes[cls].tasks[task].deps) {
    ns = std::max(ns, ends[dep.value()]);
  }
  const TaskId before = tables_.of(index).before[task];
  return before == kNone ? ns : std::max(ns, ends[before.value()]);
}

int64_t PartialReplay::duration(RankIndex index, TaskId task,
                                std::span<const double> by_kind) const {
  const ClassTable& table = tables_.of(index);
  const TaskRecord& record = table.tasks[task];
  int64_t ns = record.ns;
  if (record.type == TaskType::send) {
    const size_t link = tables_.entry(table.p2p[record.p2p()].link, index);
    const size_t row = table.transfer_row(record);
    ns = table.transfer_ns[row * tables_.num_shapes + tables_.link_shape[link]];
  } else if (record.type == TaskType::collective) {
    const ShapeId shape = instance_of(table.collectives[record.collective()], index).shape;
    const size_t row = table.transfer_row(record);
    ns = table.transfer_ns[row * tables_.num_shapes + shape];
  }
  const program::Task& what = p_.classes[tables_.cls[index]].tasks[task];
  return ScaledDurations::scaled(ns, by_kind[what.kind]);
}

void PartialReplay::evaluate(RankIndex index, TaskId task, std::span<const double> by_kind) {
  const ClassTable& table = tables_.of(index);
  const TaskRecord& record = table.tasks[task];
  if (record.type == TaskType::collective) {
    const CollectiveRecord& collective = table.collectives[record.collective()];
    const std::vector<RankIndex>& members = instance_of(collective, index).members;
    const auto task_of = [&](RankIndex member) {
      return tables_.channel_tasks[collective.channel][tables_.cls[member]][collective.ordinal];
    };
    int64_t ns = 0;
    for (const RankIndex member : members) {
      ns = std::max(ns, ready(member, task_of(member)));
    }
    ns += duration(index, task, by_kind);
    for (const RankIndex member : members) {
      set_end(member, task_of(member), ns);
    }
  } else if (record.type == TaskType::recv) {
    const P2pRecord& p2p = table.p2p[record.p2p()];
    const RankIndex peer = tables_.peer(p2p.link, index);
    const TaskId send = tables_.other_end(p2p, peer).task;
    set_end(index, task, std::max(ready(index, task), ends_[full_.base[peer] + send]));
  } else {
    set_end(index, task, ready(index, task) + duration(index, task, by_kind));
  }
}

void PartialReplay::set_end(RankIndex index, TaskId task, int64_t ns) {
  const int64_t at = full_.base[index] + task;
  if (ends_[at] == ns) return;
  changes_.push_back({at, ends_[at]});
  ends_[at] = ns;
  const ClassTable& table = tables_.of(index);
  const TaskRecord& record = table.tasks[task];
  for (int32_t k = record.succ_begin; k < record.succ_end; ++k) {
    mark(index, table.succ[k]);
  }
  if (record.type == TaskType::send) {
    const P2pRecord& p2p = table.p2p[record.p2p()];
    const RankIndex peer = tables_.peer(p2p.link, index);
    if (const MessageEnd end = tables_.other_end(p2p, peer); end.task != kNone) {
      mark(peer, end.task);
    }
  }
}

int64_t PartialReplay::last_end() const {
  int64_t ns = 0;
  for (RankIndex i = 0; i < tables_.num_ranks(); ++i) {
    for (const TaskId task : last_[tables_.cls[i]]) {
      ns = std::max(ns, ends_[full_.base[i] + task]);
    }
  }
  return ns;
}

}  // namespace hocket::sim

// SPDX-License-Identifier: Apache-2.0
// Partial replay (dPRO, MLSys'22, section 5): the step with some durations changed, computed from
// an unchanged replay. Only tasks with an end that can change are evaluated, in the order of ends
// of the unchanged replay. A change that dies out costs only the tasks that it touches, and even
// one that moves everything needs no event queue. The answer equals that of a full replay, to the
// nanosecond.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sim/durations.h"
#include "sim/engine.h"
#include "sim/tables.h"

namespace hocket::sim {

/// Durations with a speedup factor per kind of task (1: unchanged). Transfers move fewer bytes at
/// the same rate.
class ScaledDurations : public Durations {
 public:
  ScaledDurations(const Program& program, Durations& durations, std::span<const double> by_kind)
      : p_(program), durations_(durations), by_kind_(by_kind) {}
  static int64_t scaled(int64_t ns, double times);
  int64_t work_ns(ClassId cls, TaskId task) override;
  size_t device_of(int32_t rank) const override { return durations_.device_of(rank); }
  int64_t work_ns_on(size_t device, ClassId cls, TaskId task) override;
  int64_t more_launches_ns(ClassId cls, TaskId task) override {
    return durations_.more_launches_ns(cls, task);
  }
  bool host_reads(ClassId cls, TaskId task) override { return durations_.host_reads(cls, task); }
  ShapeId shape_of(std::span<const int32_t> ranks) override { return durations_.shape_of(ranks); }
  int64_t transfer_ns(ClassId cls, TaskId task, ShapeId shape) override;
  const cost::Network* network() const override { return durations_.network(); }
  const Demand& demand(ClassId cls, TaskId task, ShapeId shape) override;

 private:
  double times(ClassId cls, TaskId task) const;

  const Program& p_;
  Durations& durations_;
  std::span<const double> by_kind_;
  std::map<const Demand*, std::map<double, Demand>> demands_;
};

class PartialReplay {
 public:
  /// Runs the full replay. The arguments must outlive this object.
  PartialReplay(const Program& program, Durations& durations, const ReplayOptions& options);

  const Replay& full() const { return full_; }

  struct Result {
    int64_t end_ns = 0;
    int64_t tasks = 0;  ///< evaluated; all of them where speeds depend on other tasks
  };
  /// Returns the step with a speedup factor per kind of task (above 0; 1: unchanged).
  Result faster(std::span<const double> by_kind);
  /// Returns the same; `ends` receives the end of every task, as in Replay::end_of_ns.
  Result faster(std::span<const double> by_kind, std::vector<int64_t>* ends);

 private:
  struct Change {
    int64_t at;  ///< index in Replay::end_of_ns
    int64_t before;
  };

  void mark_changed(std::span<const double> by_kind);
  void mark(RankIndex index, TaskId task);
  void evaluate(RankIndex index, TaskId task, std::span<const double> by_kind);
  int64_t ready(RankIndex index, TaskId task) const;
  int64_t duration(RankIndex index, TaskId task, std::span<const double> by_kind) const;
  /// Sets the end of a task and, if it changed, marks its successors.
  void set_end(RankIndex index, TaskId task, int64_t ns);
  int64_t last_end() const;
  const Instance& instance_of(const CollectiveRecord& record, RankIndex index) const;

  const Program& p_;
  Durations& durations_;
  ReplayOptions options_;
  Tables tables_;
  Replay full_;
  std::vector<std::vector<TaskId>> last_;  ///< per class, last task of every non-empty queue
  std::vector<int32_t> order_of_;          ///< per (rank, task), index in the order of ends
  std::vector<std::pair<RankIndex, TaskId>> task_at_;  ///< (rank, task) in the order of ends
  std::vector<uint64_t> marked_;                       ///< a bit per task, in the order of ends
  size_t first_marked_ = 0;                            ///< index of the first word with marks
  std::vector<int64_t> ends_;
  std::vector<Change> changes_;
};

}  // namespace hocket::sim

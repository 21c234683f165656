// SPDX-License-Identifier: Apache-2.0
// bucket: merges the all-reduces of gradients over the same ranks into coalesced ones of
// plan.bucket_mib, as PyTorch DDP does (Li et al., arXiv 2006.15704): fewer, larger messages, still
// started while the backward pass is running.
#include <algorithm>
#include <map>

#include "passes/pass.h"
#include "program/views.h"

namespace hocket::passes {

using program::BufferId;
using program::kNone;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

namespace {

struct Open {
  std::vector<size_t> tasks;  // positions in the old list
  int64_t bytes = 0;
};

class Bucketing {
 public:
  Bucketing(Program& program, program::ClassId cls, int64_t limit)
      : program_(program),
        cls_(program.classes[cls]),
        views_(program, cls),
        limit_(limit),
        renamed_(cls_.tasks.size(), kNone) {}

  void run() {
    for (size_t i = 0; i < cls_.tasks.size(); ++i) {
      const Task& task = cls_.tasks[i];
      // Whoever touches a buffer of an open bucket needs it reduced before.
      for (auto& [group, bucket] : open_) {
        if (touches(bucket, task)) {
          flush(bucket);
        }
      }
      if (!mergeable(task)) {
        emit(i);
        continue;
      }
      Open& bucket = open_[task.group];
      bucket.tasks.push_back(i);
      bucket.bytes += program_.kind(task).bytes;
      if (bucket.bytes >= limit_) {
        flush(bucket);
      }
    }
    for (auto& [group, bucket] : open_) {
      flush(bucket);
    }
    for (Task& task : tasks_) {
      for (TaskId& dep : task.deps) {
        dep = renamed_[dep];
      }
    }
    cls_.tasks = std::move(tasks_);
  }

 private:
  bool mergeable(const Task& task) {
    const program::Kind& kind = program_.kind(task);
    if (task.group == kNone || !program::is_collective(kind)) return false;
    // Collectives across classes keep their place: every class has the same order of them.
    const auto [known, fresh] = crosses_.try_emplace(task.group);
    if (fresh) {
      known->second = program_.crosses_classes(program_.groups[task.group]);
    }
    if (known->second) return false;
    return comm::op(kind.communication).list && task.phase == program::Phase::grad &&
           task.in == task.out && !kind.in.empty() && graph::is_floating(kind.in[0].dtype) &&
           kind.in[0].numel() > 1;
  }
  /// True if they have a buffer in common, or views of one.
  bool touches(const Open& bucket, const Task& task) const {
    for (size_t i : bucket.tasks) {
      for (BufferId input : cls_.tasks[i].in) {
        const std::span<const BufferId> parts = views_.meets(input);
        const auto meets = [&](BufferId other) {
          return other == input || std::find(parts.begin(), parts.end(), other) != parts.end();
        };
        for (const auto* list : {&task.in, &task.out}) {
          if (std::any_of(list->begin(), list->end(), meets)) return true;
        }
      }
    }
    return false;
  }
  void emit(size_t i) {
    renamed_[i] = tasks_.size();
    tasks_.push_back(cls_.tasks[i]);
  }
  void flush(Open& bucket) {
    // The all_reduces of a bucket become one, at the place of the last of them: operands one after
    // the other, waiting for all that they waited for. `renamed_` leads whoever waited for one of
    // them to it. A bucket of one stays what it was.
    if (bucket.tasks.size() == 1) {
      emit(bucket.tasks[0]);
    } else if (bucket.tasks.size() > 1) {
      Task merged = cls_.tasks[bucket.tasks.back()];
      const comm::Id op = program_.kind(merged).communication;
      std::vector<graph::TensorType> types;
      merged.in.clear();
      merged.deps.clear();
      for (size_t i : bucket.tasks) {
        const Task& task = cls_.tasks[i];
        const program::Kind& kind = program_.kind(task);
        merged.in.insert(merged.in.end(), task.in.begin(), task.in.end());
        merged.deps.insert(merged.deps.end(), task.deps.begin(), task.deps.end());
        types.insert(types.end(), kind.in.begin(), kind.in.end());
        renamed_[i] = tasks_.size();
      }
      merged.out = merged.in;
      merged.kind =
          program_.intern(program::communication_kind(op, {}, types, types, program_.symbols));
      tasks_.push_back(std::move(merged));
    }
    bucket = {};
  }

  Program& program_;
  RankClass& cls_;
  const program::Views views_;
  const int64_t limit_;
  std::map<program::GroupId, Open> open_;
  std::map<program::GroupId, bool> crosses_;
  std::vector<Task> tasks_;
  std::vector<TaskId> renamed_;
};

struct Options {
  double bucket_mib = 25;
  void fields(Fields& visit) {
    visit("bucket_mib", bucket_mib, "size of gradient buckets, MiB").min(0).max(1 << 20);
  }
};

void run(Program& program, const Options& options) {
  const auto limit = static_cast<int64_t>(options.bucket_mib * (1 << 20));
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    Bucketing(program, cls, limit).run();
  }
}

}  // namespace

Pass pass_bucket() {
  return program_pass("bucket", "merges gradient all-reduces into buckets (plan.bucket_mib)", true,
                      {"bucket_mib=0", "bucket_mib=0.001"}, run);
}

}  // namespace hocket::passes
